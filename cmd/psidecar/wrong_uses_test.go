package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wrongUses are command lines, each with what its error must say and its exit code: 2 where the
// command line is wrong, 1 where what it names is not there or is something else. The files are
// made by TestWrongUses; 127.0.0.1:1 is a port at which nobody listens.
var wrongUses = []struct {
	line string
	code int
	want string
}{
	{"frobnicate", 2, `unknown command "frobnicate"`},
	{"statsu", 2, "did you mean status?"},
	{"apply", 2, "did you mean psidecar plan apply?"},
	{"status --nope", 2, "unknown flag: --nope; see psidecar status --help"},
	{"status --threshold 1", 2, "psidecar up"},
	{"status --agent=", 2, "nobody to ask"},
	{"status --job x", 2, "but psidecar agent, psidecar heatmap, psidecar names show, others; see"},
	{"status surplus", 2, `unknown command "surplus" for "psidecar status"`},
	{"version --config missing", 1, "reading --config: open missing: no such file"},
	{"version --config cfg.yaml", 2, `line 1: "treshold" is no flag of psidecar; did you mean threshold?`},
	{"version --log-level loud", 2, "use debug, info, warn or error"},
	{"up --threshold abc", 2, `invalid argument "abc" for --threshold: want a share such as 0.99, or auto`},
	{"up --threshold 2", 2, "--threshold 2: want a sparsity from 0 (off) to below 1"},
	{"up --save 1.5", 2, `--save "1.5": want none, lossless, auto, or the share`},
	{"up --save auto --threshold 0.8", 2, "--save auto and --threshold exclude each other"},
	{"up --save lossless --quantize 4", 2, "--save lossless and --quantize exclude each other"},
	{"up --save 0.9 --threshold 0.8", 2, "--save 0.9 and --threshold exclude each other"},
	{"up --save none --codec compact", 2, "--save none and --codec exclude each other"},
	{"up --save 0.9 --codec none", 2, "--save 0.9 needs a codec"},
	{"up --codec zip", 2, `--codec "zip": want auto, compact or none`},
	{"up --intercept=false --save 0.99", 2, "--save has no effect: it needs --intercept or --forward"},
	{"up --intercept=false --act", 2, "--act has no effect: it needs --intercept or --forward"},
	{"up --split 3", 2, "--split has no effect: it needs --act"},
	{"up --allow-probe", 2, "--allow-probe has no effect: it needs --act"},
	{"up --threshold-lifespan 9", 2, "--threshold-lifespan has no effect: it needs --threshold or --save"},
	{"up --row 9", 2, "--row has no effect: it needs --threshold-activations"},
	{"up --planner-act", 2, "--planner-act requires --planner-store FILE"},
	{"up --planner host", 2, `--planner "host": want host:port`},
	{"up --planner http://host:9811", 2, "without a scheme"},
	{"up --planner host:99999", 2, "want host:port"},
	{"up --char-values int8", 2, `--char-values "int8": want float32`},
	{"up --placement d.libsvm", 1, "d.libsvm"},
	{"up --planner host:1 --planner-tls-ca f", 2, "--planner-tls-ca has no effect with --planner"},
	{"up --planner-ca f", 2, "--planner-ca has no effect: it needs --planner"},
	{"up --tls-cert a", 2, "--tls-cert, --tls-key and --tls-ca go together"},
	{"up --insecure --tls-cert a --tls-key b --tls-ca c", 2, "--insecure and --tls-cert exclude each other"},
	{"up --cgroup /nonexistent", 1, "--cgroup /nonexistent: no such file or directory"},
	{"up --act --placement p.json", 2, "--act and --placement exclude each other"},
	{"agent --cgroup /proc", 2, "--cgroup /proc: not a directory of cgroup v2"},
	{"agent --pid 999999999", 1, "--pid 999999999: no such process"},
	{"agent --pid x", 2, `invalid argument "x" for --pid: want whole numbers`},
	{"agent --http nowhere", 2, `--http "nowhere": want HOST:PORT`},
	{"agent --sample often", 2, `--sample "often": want a number from 1 (all) on, or auto`},
	{"agent --sample 3 --cpu-budget 2", 2, "--cpu-budget has no effect: it needs --sample auto"},
	{"agent --ring-size 3", 2, "--ring-size 3: want a power of two"},
	{"agent --cpu-budget -1", 2, "--cpu-budget -1: want percent of one core"},
	{"agent --names names.yaml", 2, `unknown field "nme"`},
	{"agent --names missing.yaml", 1, "open missing.yaml: no such file"},
	{"agent --names .", 1, "is a directory"},
	{"agent --names map.yaml", 2, "want a list or a map"},
	{"agent --planner http://host:9811", 2, "without a scheme"},
	{"agent --adopt", 2, "--adopt has no effect: it needs --intercept"},
	{"agent --kubernetes-node n", 2, "--kubernetes-node has no effect: it needs --kubernetes"},
	{"agent --ingress some", 2, "want one of off, metas, all"},
	{"agent --allow-annotations everything", 2, "want job, observe, codec"},
	{"proxy --handler maybe", 2, `--handler "maybe": want add, assign or none`},
	{"proxy --placement missing.json", 1, "--placement: opening the placement: open missing.json"},
	{"proxy --forward x", 2, "want LISTEN=DEST"},
	{"proxy --planner http://host", 2, "without a scheme"},
	{"proxy --act", 2, "--act has no effect: it needs --planner"},
	{"proxy --mesh-listen x", 2, `--mesh-listen "x": want HOST:PORT or :PORT`},
	{"proxy --mesh-allow 10.0.0.1", 2, "such as 10.0.0.0/8"},
	{"proxy --mesh-ports 0", 2, "want a port, FIRST-LAST, or any"},
	{"proxy --aggregate-wait 1s", 2, "--aggregate-wait has no effect: it needs --aggregate"},
	{"proxy --aggregate host", 2, "set --handler add"},
	{"proxy --max-connections 0", 2, "want at least 1"},
	{"planner --act", 2, "--act requires --store FILE"},
	{"planner --strategy best", 2, `strategy "best"`},
	{"planner --store .", 1, "is a directory"},
	{"planner --tls-role x", 2, "want ROLE=PATTERN"},
	{"heatmap --by day", 2, "want worker or time"},
	{"heatmap --blocks -1", 2, "--blocks -1: want 1 or more"},
	{"heatmap --agent ftp://x", 2, "want HOST:PORT or http://HOST:PORT"},
	{"heatmap --agent host:99999", 2, `address "host:99999": want HOST:PORT`},
	{"heatmap --names names.yaml", 2, `unknown field "nme"`},
	{"status --agent 127.0.0.1:1", 1, "no response from http://127.0.0.1:1"},
	{"top --every 1ms", 2, "want 100ms or more"},
	{"plan show --planner http://host:9811", 2, "without a scheme"},
	{"plan show --planner 127.0.0.1:1", 1, "is a planner running"},
	{"plan codecs set --threshold 7", 2, "want a sparsity"},
	{"plan aggregate show --each 2", 2, "--each has no effect: it needs --machines"},
	{"partition", 2, "--input: name a libsvm file"},
	{"partition --input missing -k 2", 1, "open missing: no such file"},
	{"partition --input d.libsvm -k 0", 2, "want 1 or more machines"},
	{"partition --input d.libsvm -k 2 --algorithm magic", 2, `no algorithm "magic": use random`},
	{"partition --input d.libsvm -k 2 --algorithm mbp --time-budget 3s", 2, "--time-budget has no effect: it needs --algorithm best or --all"},
	{"partition --input d.libsvm -k 2 --hash-bits 3", 2, "--hash-bits has no effect: it needs --hash-bins"},
	{"partition --input d.libsvm -k 2 --stream", 2, "--stream"},
	{"partition --input d.libsvm -k 2 --capacity 1,0", 2, "--capacity [1 0]: want positive numbers"},
	{"partition --input d.libsvm -k 2 --link-speed x", 2, "for --link-speed: want numbers, separated by commas"},
	{"partition --input csv -k 2", 1, "csv: no row has a feature"},
	{"partition --input . -k 2", 1, ". is a directory: name a file"},
	{"partition d.libsvm", 2, "want --input FILE -k MACHINES, not 1 argument;"},
	{"hash --input missing --hash-bins 4", 1, "open missing: no such file"},
	{"score --input d.libsvm --assignment missing -k 2", 1, "open missing: no such file"},
	{"decode", 2, "want CAPTURE, not 0 arguments"},
	{"decode missing", 1, "open missing: no such file"},
	{"decode d.libsvm", 1, "no pcap or pcapng file"},
	{"decode d.libsvm --json", 1, "no pcap or pcapng file"},
	{"show d.libsvm", 1, "not a psidecar recording"},
	{"simulate missing", 1, "open missing: no such file"},
	{"simulate d.libsvm --strategies magic", 2, `no strategy "magic": use home`},
	{"simulate d.libsvm --seconds 3", 2, "--seconds has no effect: it needs --codecs"},
	{"record", 2, "--out FILE or --info FILE is needed"},
	{"names set x", 2, `unknown command "set"`},
	{"check", 2, "give --agents, --proxies or --planners"},
	{"check --agents host", 2, `"host": want HOST:PORT`},
	{"certs", 2, "--out is required"},
	{"certs --out o", 2, "set --host, --planner or --operator"},
	{"certs --out o --planner p --any-host", 2, "--any-host has no effect: it needs --host"},
	{"certs --out o --host h --role boss", 2, "want agent, proxy or planner"},
	{"certs --out o --host ../h", 2, `--host "../h": want names`},
	{"doctor --facts missing", 1, "open missing: no such file"},
	{"doctor --facts d.libsvm", 1, "not what psidecar doctor --json writes"},
	{"debug --out d.libsvm", 1, "d.libsvm: file exists"},
	{"demo --hosts 1", 2, "--hosts 1: want 2 to 16"},
	{"demo --data missing", 1, "--data"},
}

// goTerms match what Go's packages say in their own terms.
var goTerms = regexp.MustCompile(`strconv\.|netip\.|unmarshal|in type |context canceled|(Get|Put) "|arg\(s\)|attaching \w+ to`)

// A command that is used wrongly prints one line, which says what is wrong in the user's terms,
// and nothing on standard output. Nothing is opened before: these run without root.
func TestWrongUses(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"cfg.yaml": "treshold: 0.99\n", "names.yaml": "- nme: x\n  first: 1\n  last: 2\n", "map.yaml": "name: x\n",
		"d.libsvm": "1 1:1\n", "csv": "1,2,3\n4,5,6\n", "p.json": "{",
	} {
		if err := os.WriteFile(filepath.Clean(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range wrongUses {
		t.Run(c.line, func(t *testing.T) {
			code, stdout, stderr := runTest(t, nil, strings.Fields(c.line)...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, %q; want %d, %q", code, stderr, c.code, c.want)
			}
			if stdout != "" || goTerms.MatchString(stderr) {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
		})
	}
}
