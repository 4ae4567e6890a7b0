// SPDX-License-Identifier: Apache-2.0

import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** Makes the tables of locks in a metastore's database, which the metastore makes by itself only in Hive's own tests. */
public class MetastoreLocks {
    public static void main(String[] none) throws Exception {
        TxnDbUtil.prepDb(new HiveConf());
    }
}
