#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command of Spark executor pods with lakefold's image (spark.master = k8s://…): it runs the backend class that
# Spark's scheduler on Kubernetes expects, with the environment that the scheduler sets in the pod. The pod template
# names this script as the container's command, because the image's own entry point is lakefold.
set -euo pipefail

home=$(python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')
java=$(python -c 'from executors.spark import java_home; print(java_home())')/bin/java

options=()
while IFS='=' read -r name value; do
  options[${name#SPARK_JAVA_OPT_}]=$value
done < <(env | grep '^SPARK_JAVA_OPT_' || true)

exec "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:-}:$home/jars/*:$PWD" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
