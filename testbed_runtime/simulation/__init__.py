"""Virtual time: the real shells on a loop whose clock jumps, over simulated networks. Opens no real socket."""
