package readme

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

// otherTests are commands that other tests run.
var otherTests = map[string]string{
	"make demo": "cmd/psidecar TestDemo", "psidecar runs --job ads/ctr": "test/sidecar TestThreeRunsOfOneName",
	"make install": "deploy/packages TestInstall", "make packages": "deploy/packages TestPackages",
	"kubectl create namespace psidecar": kubernetes, "kubectl label namespace psidecar pod-security.kubernetes.io/enforce=privileged": kubernetes,
	"helm install psidecar deploy/chart --namespace psidecar --set image.repository=REGISTRY/psidecar,image.tag=TAG": kubernetes,
	"helm upgrade psidecar deploy/chart --namespace psidecar --reuse-values --set proxy.enabled=true,threshold=0.99": kubernetes,
	"kubectl --namespace psidecar port-forward service/psidecar-planner 9812":                                        "test/kubernetes, whose nodes run no pods: that the service is there",
}

const kubernetes = "test/kubernetes TestHelm"

// chapter is a part of the README and the manual whose commands go together.
type chapter struct {
	name  string
	lines []string
	play  func(h *house)
}

var chapters = []chapter{
	{"divide", []string{
		"psidecar partition --input rcv1.libsvm -k 8 --out parts",
		"psidecar partition --input rcv1.libsvm -k 8 --all",
		"psidecar score --input rcv1.libsvm --assignment mine.txt -k 8",
		"psidecar hash --input rcv1.libsvm --hash-bins 256 --out hashed.libsvm",
	}, divide},
	{"watch", []string{
		"psidecar doctor", "psidecar agent", "psidecar status", "psidecar status --links", "psidecar heatmap", "psidecar heatmap --json", "psidecar heatmap --png heatmap.png", "psidecar heatmap --by time",
		"psidecar record --out job.psr", "psidecar simulate job.psr", "psidecar top", "psidecar show job.psr other.psr", "psidecar show job.psr --live 127.0.0.1:9810", "curl -s 127.0.0.1:9810/metrics",
	}, watch},
	{"fleet", []string{
		"psidecar planner --listen :9811 --http :9812 --insecure", "psidecar agent --planner planner-host:9811",
	}, fleet},
	{"send less", []string{
		"psidecar agent --intercept --planner planner-host:9811", "psidecar proxy --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key",
		"psidecar status --proxy http://127.0.0.1:9813",
	}, sendLess},
	{"keys", []string{
		"psidecar proxy --placement parts/placement.json ...", "psidecar proxy --act --planner planner-host:9811 --handler add ...",
		"psidecar plan show", "psidecar restore",
	}, keys},
}

func (h *house) holds(out, what string, words ...string) {
	h.t.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			h.t.Errorf("%s does not print %q:\n%s", what, w, out)
		}
	}
}

func (h *house) there(files ...string) {
	h.t.Helper()
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() == 0 {
			h.t.Errorf("%s was not written: %v", f, err)
		}
	}
}

func divide(h *house) {
	h.run("psjob generate --samples 400 --features 800 --out rcv1.libsvm")
	out := h.run("psidecar partition --input rcv1.libsvm -k 8 --out parts")
	h.holds(out, "partition", "best", "400", "random")
	h.there("parts/shard-00000.libsvm", "parts/shard-00007.libsvm", "parts/assignment.txt", "parts/placement.json")
	out = h.run("psidecar partition --input rcv1.libsvm -k 8 --all")
	h.holds(out, "partition --all", "tsh1", "mbp", "dppa", "best")
	text, err := os.ReadFile("parts/assignment.txt")
	if err == nil {
		err = os.WriteFile("mine.txt", text, 0o600)
	}
	require.NoError(h.t, err)
	h.holds(h.run("psidecar score --input rcv1.libsvm --assignment mine.txt -k 8"), "score", "400", "random")
	h.run("psidecar hash --input rcv1.libsvm --hash-bins 256 --out hashed.libsvm")
	h.there("hashed.libsvm")
}

// pages of psidecar's parts.
const (
	agentPage   = 9810
	plannerPage = 9812
	proxyPage   = 9813
)

func watch(h *house) {
	h.holds(h.run("psidecar doctor"), "doctor", "BPF", "ok")
	defer h.job(2, 2)()
	agent := h.serve("psidecar agent", agentPage)
	h.awaitOutput("psidecar status", "job "+address+":9001", "2 servers, 2 workers", "steps/s")
	h.awaitOutput("psidecar status --links", "job "+address+":9001", "2 servers, 2 workers", "steps/s", "worker1", "observe: on")
	h.awaitOutput("psidecar heatmap", "worker0 ", "worker1 ", "logarithmic")
	var map1 struct {
		Workers []string
		Counts  [][]uint64
	}
	h.decode(h.run("psidecar heatmap --json"), &map1)
	var seen uint64
	for _, row := range map1.Counts {
		for _, n := range row {
			seen += n
		}
	}
	if len(map1.Workers) != 2 || seen == 0 {
		h.t.Errorf("heatmap --json has %d workers and %d accesses", len(map1.Workers), seen)
	}
	h.run("psidecar heatmap --png heatmap.png")
	h.there("heatmap.png")
	h.awaitOutput("psidecar heatmap --by time", " by time and key", "logarithmic")
	h.awaitOutput("curl -s 127.0.0.1:9810/metrics", "psidecar_key_accesses_total{job=\""+address+":9001\"", "psidecar_job_state", "psidecar_measure_connections")
	h.record("psidecar record --out job.psr")
	h.holds(h.run("psidecar simulate job.psr"), "simulate", "home", "locality")
	h.holds(h.run("psidecar top"), "top", address+":9001", "worker1")
	h.show("psidecar show job.psr --live 127.0.0.1:9810", "job", address+":9001")
	h.end(agent)
	text, err := os.ReadFile("job.psr")
	if err == nil {
		err = os.WriteFile("other.psr", text, 0o600)
	}
	require.NoError(h.t, err)
	h.show("psidecar show job.psr other.psr", "job", "other")
}

// show opens recordings as a page, until there are jobs whose names begin so.
func (h *house) show(line string, jobs ...string) {
	h.t.Helper()
	const page = 9816
	p := h.start(filepath.Join(h.tools, "psidecar"), strings.Fields(line)[1:]...)
	h.await(line+" serves its page", p, func() error {
		body, err := h.get(page, "/api/v1/jobs")
		for _, j := range jobs {
			if err == nil && !strings.Contains(string(body), `"job":"`+j) {
				err = fmt.Errorf("it has no job %s: %s", j, body)
			}
		}
		return err
	})
	h.end(p)
}

// record records until there is something, then ends it as Ctrl-C does.
func (h *house) record(line string) {
	h.t.Helper()
	words := strings.Fields(line)
	p := h.start(filepath.Join(h.tools, words[0]), words[1:]...)
	const enough = 8 * time.Second // of a job with 25 steps a second
	select {
	case <-p.done:
		h.t.Fatalf("%s has ended:\n%s", line, p.out.String())
	case <-time.After(enough):
	}
	require.NoError(h.t, p.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.done:
	case <-time.After(patience):
		h.t.Fatalf("%s does not end:\n%s", line, p.out.String())
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		h.t.Errorf("%s ends with %d:\n%s", line, code, p.out.String())
	}
	h.there("job.psr")
}

func fleet(h *house) {
	defer h.job(1, 2)()
	planner := h.serve("psidecar planner --listen :9811 --http :9812 --insecure", plannerPage)
	agent := h.serve("psidecar agent --planner planner-host:9811", agentPage)
	h.awaitOutput("psidecar status --links", "planner at planner-host:9811", "reports taken")
	h.awaitOutput("psidecar status --agent 127.0.0.1:9812", "1 host reports", "job "+address+":9002", "steps/s")
	h.end(agent)
	h.end(planner)
}

func sendLess(h *house) {
	h.run("psidecar certs --out ca --host readme," + address)
	for _, f := range []string{"ca.crt", "tls.crt", "tls.key"} {
		require.NoError(h.t, os.Rename("ca/readme/"+f, f))
	}
	planner := h.serve("psidecar planner --listen :9811 --http :9812 --insecure", plannerPage)
	agent := h.serve("psidecar agent --intercept --planner planner-host:9811", agentPage)
	proxy := h.serve("psidecar proxy --tls-ca ca.crt --tls-cert tls.crt --tls-key tls.key", proxyPage)
	stop := h.carriedJob(1, 2)
	h.awaitOutput("psidecar status --proxy http://127.0.0.1:9813", "job "+address+":9003", "steps/s", "carried", "compact: on (flags: --codec auto)", "not enabled")
	stop()
	h.end(proxy)
	h.end(agent)
	h.end(planner)
}

func keys(h *house) {
	// The rest of the command line is the user's: links in this network are trusted.
	filled := func(line string) string { return strings.Replace(line, "...", "--insecure", 1) }
	agent := h.serve("psidecar agent --intercept --planner planner-host:9811", agentPage)
	proxy := h.serve(filled("psidecar proxy --placement parts/placement.json ..."), proxyPage)
	stop := h.carriedJob(8, 1)
	h.awaitOutput("psidecar status --proxy http://127.0.0.1:9813", "job "+address+":9004", "steps/s", "placement: on")
	stop()
	h.end(proxy)
	planner := h.serve("psidecar planner --listen :9811 --http :9812 --insecure --store plans.db", plannerPage)
	proxy = h.serve(filled("psidecar proxy --act --planner planner-host:9811 --handler add ..."), proxyPage)
	stop = h.carriedJob(2, 2)
	h.awaitOutput("psidecar status --proxy http://127.0.0.1:9813", "job "+address+":9005", "steps/s", "moves: on")
	h.awaitOutput("psidecar plan show", "job "+address+":9005", "2 servers")
	h.awaitOutput("psidecar restore")
	stop()
	h.end(proxy)
	h.end(agent)
	h.end(planner)
}
