"""Virtual time: the real process code on a loop whose clock jumps, over simulated networks. Opens no sockets."""
