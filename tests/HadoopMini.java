// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.File;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** One NameNode and one DataNode, with "yarn" as the second argument a ResourceManager and a NodeManager as well. */
public class HadoopMini {
  public static void main(String[] arguments) throws Exception {
    // Hadoop's loggers write errors to the standard output, where they would be read as answers.
    PrintStream answers = new PrintStream(System.out, true);
    System.setOut(System.err);
    File home = new File(arguments[0]);
    Configuration hdfs = new Configuration();
    hdfs.set("dfs.namenode.fs-limits.min-block-size", "1024");
    hdfs.set("fs.trash.interval", "60");
    hdfs.setInt("dfs.namenode.metrics.logger.period.seconds", 0);
    hdfs.setInt("dfs.datanode.metrics.logger.period.seconds", 0);
    hdfs.setInt("dfs.namenode.handler.count", 4);
    hdfs.setInt("dfs.datanode.handler.count", 4);
    MiniDFSCluster files = new MiniDFSCluster.Builder(hdfs).numDataNodes(1).format(true).build();
    Configuration site = new Configuration(false);
    site.set("fs.defaultFS", files.getURI().toString());
    site.set("fs.trash.interval", "60");
    File conf = new File(home, "conf");
    conf.mkdirs();
    try (FileOutputStream out = new FileOutputStream(new File(conf, "core-site.xml"))) { site.writeXml(out); }
    if (arguments.length > 1) {
      Configuration c = new YarnConfiguration(hdfs);
      c.set("fs.defaultFS", files.getURI().toString());
      c.setInt("yarn.nodemanager.resource.memory-mb", 4096);
      c.setInt("yarn.scheduler.minimum-allocation-mb", 256);
      c.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
      c.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
      c.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
      c.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
      c.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
      c.setInt("yarn.resourcemanager.am.max-attempts", 4);
      c.set("yarn.scheduler.capacity.root.queues", "default");
      c.set("yarn.scheduler.capacity.root.default.capacity", "100");
      c.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
      MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
      yarn.init(c);
      yarn.start();
      Configuration told = new Configuration(false);
      for (java.util.Map.Entry<String, String> one : yarn.getConfig()) {
        String key = one.getKey();
        if (key.startsWith("yarn.resourcemanager.") || key.startsWith("yarn.scheduler.") || key.startsWith("yarn.nodemanager.resource.")) told.set(key, one.getValue());
      }
      told.set("yarn.is.minicluster", "true");
      try (FileOutputStream out = new FileOutputStream(new File(conf, "yarn-site.xml"))) { told.writeXml(out); }
    }
    answers.println("READY " + files.getURI());
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    for (String order = orders.readLine(); order != null; order = orders.readLine()) {
      // "quota NAMES PATH", with -1 for none
      String[] words = order.split(" ", 3);
      files.getFileSystem().setQuota(new Path(words[2]), Long.parseLong(words[1]), HdfsConstants.QUOTA_DONT_SET);
      answers.println("DONE");
    }
    System.exit(0);
  }
}
