// Command weight measures what psidecar costs a job that did not ask for it: two jobs run without
// psidecar and beside it in several ways, by turns, on four hosts, each with a server and a worker.
//
// The job pingpong pulls and pushes 785 doubles of one server without a pause, asynchronously;
// ftrl trains a sparse linear model by FTRL with about 5,300 keys a request. The ways are direct
// (no psidecar), agents (nothing but an agent on each host), observe (and a planner), none, auto,
// compact and threshold (and proxies with that codec; ftrl alone). Printed are medians over the rounds, and
// the ratios of wall clock and CPU time to those of direct in the same round. The BPF programs'
// time is in that of the job, in whose context they run, and apart. Agents have the savings of a
// minute at their start: --before shows what they take in the long run.
//
//	make bench-weight WEIGHTFLAGS='--rounds 1 --jobs pingpong --ways direct,observe'
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

const machines = 4

// way is what runs beside the job.
type way struct {
	name            string
	agents, planner bool
	proxy           []string // flags of the proxies; nil: there are none
}

var ways = []way{
	{name: "direct"}, {name: "agents", agents: true}, {name: "observe", agents: true, planner: true},
	{"none", true, true, []string{"--codec", "none"}},
	{"auto", true, true, []string{}},
	{"compact", true, true, []string{"--codec", "compact"}},
	{"threshold", true, true, []string{"--threshold", "0.95", "--handler", "add"}},
}

// sums are counters: seconds of CPU time by group ("job", "agent", "proxy", "planner"), of the
// programs in the kernel ("programs") and of one host's agent and programs ("agent0" and so on),
// bytes sent ("bytes"), and the time in seconds ("wall").
type sums map[string]float64

// result is what was measured of one run: differences of counters.
type result struct {
	Job, Way string
	Sums     sums
}

type bench struct {
	net             *hosts.Net
	dir             string
	psidecar, psjob string
	extra           []string // flags of the agents
	earlier         int      // runs before the one that is measured
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	rounds := flag.Int("rounds", 5, "rounds of all ways")
	jobs := flag.String("jobs", "pingpong,ftrl", "jobs")
	names := flag.String("ways", "direct,observe,none,auto,compact,threshold", "ways")
	rate := flag.Float64("rate", 0, "Mbit/s of every link; 0: unlimited")
	pings, steps := flag.Int("pings", 20_000, "steps of a worker of pingpong"), flag.Int("steps", 600, "likewise of ftrl")
	data := flag.String("data", "", "libsvm text for ftrl; empty: generated")
	bin := flag.String("bin", "bin", "directory with psidecar and psjob")
	agent := flag.String("agent", "", "more flags of the agents, by spaces")
	flag.IntVar(&b.earlier, "before", 0, "runs of the job beside the same agents before the one that is measured, which use up their savings")
	flag.Parse()
	b.extra = strings.Fields(*agent)
	if *bin, err = filepath.Abs(*bin); err != nil {
		return err
	}
	b.psidecar, b.psjob = filepath.Join(*bin, "psidecar"), filepath.Join(*bin, "psjob")
	if b.dir, err = os.MkdirTemp("", "psidecar-weight-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if *data == "" {
		*data = filepath.Join(b.dir, "text.libsvm")
		if out, err := exec.CommandContext(ctx, b.psjob, "generate", "--out", *data, "--samples", "40000", "--features", "500000", "--words", "40").CombinedOutput(); err != nil {
			return fmt.Errorf("making data: %w\n%s", err, out)
		}
	}
	if b.net, err = hosts.New(hosts.Config{Hosts: machines, Rate: uint64(*rate * 1e6), Pairs: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.net.Close()) }()
	programs := map[string]hosts.Program{
		"pingpong": {b.psjob, "--model", "pingpong", "--count-keys", "785", "--key-map", "identity", "--steps", strconv.Itoa(*pings)},
		"ftrl":     {b.psjob, "--model", "lr", "--async", "--data", *data, "--batch", "400", "--steps", strconv.Itoa(*steps)},
	}
	var all []result
	for range *rounds {
		for job := range strings.SplitSeq(*jobs, ",") {
			for name := range strings.SplitSeq(*names, ",") {
				at := slices.IndexFunc(ways, func(w way) bool { return w.name == name })
				if at < 0 || programs[job] == nil {
					return fmt.Errorf("no way %q or job %q: see go doc ./test/weight", name, job)
				}
				if job == "pingpong" && name == "threshold" {
					continue // it checks sums while values wait
				}
				r, err := b.measure(ctx, job, programs[job], &ways[at])
				if err != nil {
					return fmt.Errorf("%s, %s: %w", job, name, err)
				}
				all = append(all, r)
			}
		}
	}
	show(all)
	return nil
}

// measure runs a job once.
func (b *bench) measure(ctx context.Context, job string, program hosts.Program, w *way) (r result, err error) {
	var services []*hosts.Process
	defer func() {
		for _, s := range slices.Backward(services) {
			err = errors.Join(err, s.Signal(syscall.SIGTERM), s.Wait(ctx))
		}
	}()
	start := func(h *hosts.Host, group string, args ...string) error {
		cmd := exec.Command(b.psidecar, append(args, "--log-level", "error")...)
		cmd.Stderr = os.Stderr
		p, err := h.StartIn(group, cmd)
		if err == nil {
			services = append(services, p)
		}
		return err
	}
	first := b.net.Host(0)
	for i, h := range b.net.Hosts() {
		if !w.agents {
			break
		}
		if i == 0 && w.planner {
			if err := start(h, "planner", "planner", "--listen", h.Address(9811), "--http", h.Address(9812), "--insecure", "--socket", ""); err != nil {
				return r, err
			}
		}
		group, err := h.Group("job")
		if err != nil {
			return r, err
		}
		agent, ready := append([]string{"agent", "--host", h.Name, "--cgroup", group, "--http", h.Address(9810)}, b.extra...), "psidecar_build_info"
		if w.planner {
			agent = append(agent, "--planner", first.Address(9811))
		}
		socket := filepath.Join(b.dir, h.Name+".sock")
		if w.proxy != nil {
			agent, ready = append(agent, "--intercept", "--proxy-socket", socket, "--bpf-dir", "/sys/fs/bpf/"+h.Namespace()), "psidecar_intercept_proxies"
		}
		err = start(h, "agent", agent...)
		if err == nil && w.proxy != nil {
			err = start(h, "proxy", append([]string{"proxy", "--proxy-socket", socket, "--insecure", "--grace", "1s", "--http", "", "--planner", first.Address(9811),
				"--state-dir", filepath.Join(b.dir, h.Name+".state"), "--control-socket", ""}, w.proxy...)...)
		}
		if err = errors.Join(err, await(ctx, h, ready)); err != nil {
			return r, err
		}
	}
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(machines, program), Workers: hosts.Repeat(machines, program), Hosts: b.net.Hosts()}
	r = result{job, w.name, sums{}}
	for range b.earlier + 1 {
		before, unread := b.sums(w)
		_, failed := j.Run(ctx)
		after, err := b.sums(w)
		if err = errors.Join(unread, failed, err); err != nil {
			return r, err
		}
		for name := range after {
			r.Sums[name] = after[name] - before[name]
		}
	}
	return r, nil
}

// sums reads all counters.
func (b *bench) sums(w *way) (sums, error) {
	s := sums{"wall": float64(time.Now().UnixNano()) / 1e9}
	for i, h := range b.net.Hosts() {
		programs := 0.0
		var failed error
		if w.agents {
			programs, failed = metric(h, "psidecar_program_seconds_total{")
		}
		own := fmt.Sprint("agent", i)
		s["programs"], s[own] = s["programs"]+programs, programs
		for _, group := range []string{"job", "agent", "proxy", "planner"} {
			_, err := h.Group(group)
			took, unread := h.GroupCPU(group)
			failed = errors.Join(failed, err, unread)
			if s[group] += took.Seconds(); group == "agent" {
				s[own] += took.Seconds()
			}
		}
		if failed != nil {
			return s, failed
		}
	}
	traffic, err := b.net.Traffic()
	for _, row := range traffic {
		for _, t := range row {
			s["bytes"] += float64(t.Payload)
		}
	}
	return s, err
}

// metric returns the sum of the series of an agent that begin with prefix.
func metric(h *hosts.Host, prefix string) (sum float64, err error) {
	client := http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}
	answer, err := client.Get("http://" + h.Address(9810) + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, prefix) {
			v, bad := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			sum, err = sum+v, errors.Join(err, bad)
		}
	}
	return sum, err
}

// await waits until a metric of an agent is 1.
func await(ctx context.Context, h *hosts.Host, name string) (err error) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		var got float64
		if got, err = metric(h, name); err == nil && got == 1 {
			return nil
		}
	}
	return fmt.Errorf("%s: %s is not 1: %w", h.Name, name, err)
}

// columns are what is printed of a run, over all hosts where it is not said otherwise.
var columns = []struct {
	name string
	of   func(s sums) float64
}{
	{"wall, s", func(s sums) float64 { return s["wall"] }},
	{"CPU, s", func(s sums) float64 { return s["job"] + s["agent"] + s["proxy"] + s["planner"] }},
	{"job", func(s sums) float64 { return s["job"] }},
	{"programs", func(s sums) float64 { return s["programs"] }},
	{"agents", func(s sums) float64 { return s["agent"] }},
	{"proxies", func(s sums) float64 { return s["proxy"] }},
	{"planner", func(s sums) float64 { return s["planner"] }},
	{"busiest agent, %", func(s sums) float64 { return 100 * max(s["agent0"], s["agent1"], s["agent2"], s["agent3"]) / s["wall"] }},
	{"planner, %", func(s sums) float64 { return 100 * s["planner"] / s["wall"] }},
	{"MB a host", func(s sums) float64 { return s["bytes"] / machines / 1e6 }},
}

// show prints the medians of all runs of each job and way, and those of the ratios to direct of the
// first two columns.
func show(all []result) {
	fmt.Print("| job | way |")
	for _, c := range columns {
		fmt.Printf(" %s |", c.name)
	}
	fmt.Println(" x wall | x CPU |\n" + strings.Repeat("| --- ", len(columns)+4) + "|")
	var shown []string
	for _, r := range all {
		if slices.Contains(shown, r.Job+" "+r.Way) {
			continue
		}
		shown = append(shown, r.Job+" "+r.Way)
		fmt.Printf("| %s | %s |", r.Job, r.Way)
		of := func(way string, column int) (list []float64) {
			for _, other := range all {
				if other.Job == r.Job && other.Way == way {
					list = append(list, columns[column].of(other.Sums))
				}
			}
			return list
		}
		for c := range columns {
			fmt.Printf(" %.2f |", median(of(r.Way, c)))
		}
		for c := range 2 {
			ratios, direct := of(r.Way, c), of("direct", c)
			for i := range direct {
				ratios[i] /= direct[i]
			}
			if len(direct) > 0 {
				fmt.Printf(" %.2f |", median(ratios))
			}
		}
		fmt.Println()
	}
}

// median returns the middle of a list that is not empty.
func median(list []float64) float64 {
	slices.Sort(list)
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
