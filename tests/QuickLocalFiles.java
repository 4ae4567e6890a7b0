// SPDX-License-Identifier: Apache-2.0
package lakefold.tests;

import java.lang.reflect.Field;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system without two habits that are a quarter of a test JVM's CPU time.
 *
 * <p>It runs chmod for each file that it creates; and each Spark job carries, compressed one by one, the defaults of
 * YARN and MapReduce with it, which nobody here asks for.
 */
public final class QuickLocalFiles extends LocalFileSystem {
  static {
    try {
      // They add their defaults when they are loaded, which must be before those are removed.
      Class.forName("org.apache.hadoop.mapred.JobConf");
      Class.forName("org.apache.hadoop.yarn.conf.YarnConfiguration");
      Class.forName("org.apache.hadoop.hdfs.HdfsConfiguration");
      Field files = Configuration.class.getDeclaredField("defaultResources");
      files.setAccessible(true);
      ((List<?>) files.get(null)).retainAll(Set.of("core-default.xml", "core-site.xml"));
      Configuration.reloadExistingConfigurations();
    } catch (ReflectiveOperationException | LinkageError error) {
      // Another Hadoop: slower, and as right.
    }
  }

  public QuickLocalFiles() {
    super(new Raw());
  }

  private static final class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) {}
  }
}
