# SPDX-License-Identifier: Apache-2.0
"""Storage drivers: files of a table on local disks, HDFS and S3, by location."""
