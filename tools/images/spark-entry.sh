#!/bin/sh
# The first word `executor` (what Spark's driver asks a pod for) starts an executor of Spark on Kubernetes; anything else is the command to run.
set -eu
if [ "${1:-}" != executor ]; then
    exec "$@"
fi
classpath="${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_HOME}/jars/*"
set --
number=0
while name="SPARK_JAVA_OPT_${number}" && eval "[ -n \"\${${name}+set}\" ]"; do
    eval "set -- \"\$@\" \"\${${name}}\""
    number=$((number + 1))
done
exec java "$@" "-Xms${SPARK_EXECUTOR_MEMORY}" "-Xmx${SPARK_EXECUTOR_MEMORY}" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
