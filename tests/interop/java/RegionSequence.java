package org.apache.flink.runtime.executiongraph.failover;

import dev.headgate.interop.Sequence;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.partition.PartitionNotFoundException;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.jobgraph.IntermediateDataSetID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.runtime.jobgraph.JobVertexID;
import org.apache.flink.runtime.scheduler.SchedulingTopologyListener;
import org.apache.flink.runtime.scheduler.strategy.ConsumedPartitionGroup;
import org.apache.flink.runtime.scheduler.strategy.ConsumerVertexGroup;
import org.apache.flink.runtime.scheduler.strategy.ExecutionVertexID;
import org.apache.flink.runtime.scheduler.strategy.ResultPartitionState;
import org.apache.flink.runtime.scheduler.strategy.SchedulingExecutionVertex;
import org.apache.flink.runtime.scheduler.strategy.SchedulingPipelinedRegion;
import org.apache.flink.runtime.scheduler.strategy.SchedulingResultPartition;
import org.apache.flink.runtime.scheduler.strategy.SchedulingTopology;

/** The pipelined regions of a job, and the tasks that restart after a failure. */
public final class RegionSequence extends Sequence {

    private final Map<String, JobVertexID> ids = new HashMap<>();
    private final Map<String, Integer> parallelism = new LinkedHashMap<>();
    private final Map<ExecutionVertexID, Vertex> vertices = new LinkedHashMap<>();
    private final Map<IntermediateResultPartitionID, Partition> partitions = new HashMap<>();
    private final Map<ExecutionVertexID, SchedulingPipelinedRegion> regions = new HashMap<>();
    private final Map<String, IntermediateDataSetID> results = new HashMap<>();
    private final Set<IntermediateResultPartitionID> lost = new HashSet<>();

    @Override
    protected String step(String[] words) {
        switch (words[0]) {
            case "new":
                return "";
            case "vertex":
                vertex(words[1], number(words, 2));
                return "";
            case "edge":
                edge(words[1], words[2], words[3], "blocking".equals(words[4]));
                return "";
            case "regions":
                return regions();
            case "lose":
                lost.add(partition(words[1], words[2], number(words, 3)));
                return "";
            case "restore":
                lost.remove(partition(words[1], words[2], number(words, 3)));
                return "";
            default:
                return restarted(words);
        }
    }

    private IntermediateResultPartitionID partition(String source, String target, int producer) {
        return new IntermediateResultPartitionID(results.get(source + target), producer);
    }

    private void vertex(String name, int subtasks) {
        ids.put(name, new JobVertexID());
        parallelism.put(name, subtasks);
        for (int subtask = 0; subtask < subtasks; subtask++) {
            Vertex vertex = new Vertex(name, subtask);
            vertices.put(vertex.getId(), vertex);
        }
    }

    private void edge(String source, String target, String partitioning, boolean blocking) {
        ResultPartitionType type =
                blocking ? ResultPartitionType.BLOCKING : ResultPartitionType.PIPELINED_BOUNDED;
        IntermediateDataSetID result = new IntermediateDataSetID();
        results.put(source + target, result);
        List<Partition> produced = new ArrayList<>();
        for (int subtask = 0; subtask < parallelism.get(source); subtask++) {
            Vertex producer = vertices.get(new ExecutionVertexID(ids.get(source), subtask));
            Partition partition = new Partition(new IntermediateResultPartitionID(result, subtask), producer, type);
            producer.produced.add(partition);
            partitions.put(partition.id, partition);
            produced.add(partition);
        }
        List<Vertex> consumers = new ArrayList<>();
        for (int subtask = 0; subtask < parallelism.get(target); subtask++) {
            consumers.add(vertices.get(new ExecutionVertexID(ids.get(target), subtask)));
        }
        if ("forward".equals(partitioning)) {
            for (int subtask = 0; subtask < consumers.size(); subtask++) {
                connect(produced.subList(subtask, subtask + 1), consumers.subList(subtask, subtask + 1), type);
            }
        } else {
            connect(produced, consumers, type);
        }
    }

    private void connect(List<Partition> produced, List<Vertex> consumers, ResultPartitionType type) {
        ConsumedPartitionGroup consumed =
                ConsumedPartitionGroup.fromMultiplePartitions(
                        consumers.size(), produced.stream().map(each -> each.id).toList(), type);
        ConsumerVertexGroup readers =
                ConsumerVertexGroup.fromMultipleVertices(consumers.stream().map(Vertex::getId).toList(), type);
        consumers.forEach(each -> each.consumed.add(consumed));
        produced.forEach(each -> each.consumers.add(readers));
    }

    private String regions() {
        List<String> texts = new ArrayList<>();
        for (Set<SchedulingExecutionVertex> members :
                SchedulingPipelinedRegionComputeUtil.computePipelinedRegions(
                        vertices.values(), vertices::get, partitions::get)) {
            SchedulingPipelinedRegion region = new Region(members);
            members.forEach(each -> regions.put(each.getId(), region));
            texts.add(names(members.stream().map(SchedulingExecutionVertex::getId).toList()));
        }
        texts.sort(null);
        return String.join(" ", texts);
    }

    /** {@code fail vertex subtask}, and the result that it could not read: {@code source target producer}. */
    private String restarted(String[] words) {
        Throwable cause = new Exception("a failure");
        if (words.length > 3) {
            cause =
                    new PartitionNotFoundException(
                            new ResultPartitionID(
                                    partition(words[3], words[4], number(words, 5)),
                                    ExecutionAttemptID.randomId()));
        }
        RestartPipelinedRegionFailoverStrategy strategy =
                new RestartPipelinedRegionFailoverStrategy(new Jobs(), id -> !lost.contains(id));
        return names(
                strategy.getTasksNeedingRestart(
                        new ExecutionVertexID(ids.get(words[1]), number(words, 2)), cause));
    }

    private String names(Collection<ExecutionVertexID> tasks) {
        List<String> names = new ArrayList<>(tasks.stream().map(each -> vertices.get(each).name).toList());
        names.sort(null);
        return String.join(",", names);
    }

    private final class Vertex implements SchedulingExecutionVertex {
        final ExecutionVertexID id;
        final String name;
        final List<Partition> produced = new ArrayList<>();
        final List<ConsumedPartitionGroup> consumed = new ArrayList<>();

        Vertex(String vertex, int subtask) {
            id = new ExecutionVertexID(ids.get(vertex), subtask);
            name = vertex + "-" + subtask;
        }

        @Override
        public ExecutionVertexID getId() {
            return id;
        }

        @Override
        public ExecutionState getState() {
            return ExecutionState.RUNNING;
        }

        @Override
        public List<ConsumedPartitionGroup> getConsumedPartitionGroups() {
            return consumed;
        }

        @Override
        public Iterable<? extends SchedulingResultPartition> getConsumedResults() {
            List<Partition> results = new ArrayList<>();
            consumed.forEach(group -> group.forEach(each -> results.add(partitions.get(each))));
            return results;
        }

        @Override
        public Iterable<? extends SchedulingResultPartition> getProducedResults() {
            return produced;
        }
    }

    private static final class Partition implements SchedulingResultPartition {
        final IntermediateResultPartitionID id;
        final Vertex producer;
        final ResultPartitionType type;
        final List<ConsumerVertexGroup> consumers = new ArrayList<>();

        Partition(IntermediateResultPartitionID id, Vertex producer, ResultPartitionType type) {
            this.id = id;
            this.producer = producer;
            this.type = type;
        }

        @Override
        public IntermediateResultPartitionID getId() {
            return id;
        }

        @Override
        public IntermediateDataSetID getResultId() {
            return id.getIntermediateDataSetID();
        }

        @Override
        public ResultPartitionType getResultType() {
            return type;
        }

        @Override
        public ResultPartitionState getState() {
            throw new UnsupportedOperationException();
        }

        @Override
        public SchedulingExecutionVertex getProducer() {
            return producer;
        }

        @Override
        public List<ConsumerVertexGroup> getConsumerVertexGroups() {
            return consumers;
        }

        @Override
        public List<ConsumedPartitionGroup> getConsumedPartitionGroups() {
            throw new UnsupportedOperationException();
        }
    }

    private static final class Region implements SchedulingPipelinedRegion {
        final Map<ExecutionVertexID, SchedulingExecutionVertex> members = new HashMap<>();

        Region(Collection<SchedulingExecutionVertex> vertices) {
            vertices.forEach(each -> members.put(each.getId(), each));
        }

        @Override
        public Iterable<? extends SchedulingExecutionVertex> getVertices() {
            return members.values();
        }

        @Override
        public SchedulingExecutionVertex getVertex(ExecutionVertexID vertex) {
            return members.get(vertex);
        }

        @Override
        public boolean contains(ExecutionVertexID vertex) {
            return members.containsKey(vertex);
        }

        @Override
        public Iterable<ConsumedPartitionGroup> getAllNonPipelinedConsumedPartitionGroups() {
            throw new UnsupportedOperationException();
        }

        @Override
        public Iterable<ConsumedPartitionGroup> getAllReleaseBySchedulerConsumedPartitionGroups() {
            throw new UnsupportedOperationException();
        }
    }

    private final class Jobs implements SchedulingTopology {
        @Override
        public Iterable<? extends SchedulingExecutionVertex> getVertices() {
            return vertices.values();
        }

        @Override
        public SchedulingExecutionVertex getVertex(ExecutionVertexID vertex) {
            return vertices.get(vertex);
        }

        @Override
        public SchedulingResultPartition getResultPartition(IntermediateResultPartitionID partition) {
            return partitions.get(partition);
        }

        @Override
        public Iterable<? extends SchedulingPipelinedRegion> getAllPipelinedRegions() {
            return new HashSet<>(regions.values());
        }

        @Override
        public SchedulingPipelinedRegion getPipelinedRegionOfVertex(ExecutionVertexID vertex) {
            return regions.get(vertex);
        }

        @Override
        public void registerSchedulingTopologyListener(SchedulingTopologyListener listener) {}
    }
}
