package codecs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// divided is a logistic regression whose samples psidecar partition has divided among two hosts.
// The workers of the first take part, which divide its samples once more, with all servers on
// another host.
type divided struct {
	workers, servers int
	dir              string // a shard for each worker
}

const dividedBatch = 128

// divide partitions a data set among two machines, and divides the first one's shard among workers.
func divide(t *testing.T, name string, workers int) (dir string) {
	t.Helper()
	parts, dir := t.TempDir(), t.TempDir()
	cmd := exec.CommandContext(t.Context(), build(t, "cmd/psidecar"), "partition", "--input", require.Dataset(t, name), "-k", "2", "--algorithm", "best", "--key-map", "spread", "--out", parts)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psidecar partition: %v\n%s", err, out)
	}
	whole := require.Value(os.ReadFile(filepath.Join(parts, "shard-00000.libsvm")))(t)
	shards := make([]bytes.Buffer, workers)
	lines := bufio.NewScanner(bytes.NewReader(whole))
	lines.Buffer(nil, 1<<20)
	for i := 0; lines.Scan(); i++ {
		shards[i%workers].Write(append(lines.Bytes(), '\n'))
	}
	require.NoError(t, lines.Err())
	for i := range shards {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("shard-%05d.libsvm", i)), shards[i].Bytes(), 0o600))
	}
	return dir
}

// lists are how many keys the workers of the host use in a number of steps, of a list for each
// worker and step: in all, and if each key of a step is counted once.
type lists struct {
	all, distinct int
	requests      int // bytes that the lists take encoded, in the workers' pulls
}

func (l lists) minus(o lists) lists {
	return lists{l.all - o.all, l.distinct - o.distinct, l.requests - o.requests}
}

// common is the share of the keys that the workers of a host have in common in a step.
func (l lists) common() float64 { return 1 - float64(l.distinct)/float64(l.all) }

// count counts the lists of the first steps.
func (d divided) count(t *testing.T, steps int) (l lists) {
	t.Helper()
	keys := require.Value(dataset.ParseKeyMap("spread"))(t)
	used := make([]map[uint64]bool, steps)
	for rank := range d.workers {
		set := require.Value(model.LoadSparse(t.Context(), d.dir, model.Share{Index: rank, Of: d.workers}, keys, false))(t)
		m, next := model.NewLinear(set), train.Batches(set.Len(), dividedBatch, 1, rank)
		links := make([]relay.Sender, d.servers)
		for i := range links {
			links[i] = d.link(t, uint64(rank*d.servers+i))
		}
		for step := range used {
			if used[step] == nil {
				used[step] = map[uint64]bool{}
			}
			keys := m.Groups(next())[0].Keys
			for _, key := range keys {
				used[step][key] = true
			}
			l.all += len(keys)
			for i, link := range links {
				_, end := pslite.KeyRange(i, d.servers)
				n, _ := slices.BinarySearch(keys, end)
				l.requests += requested(t, link, step, keys[:n])
				keys = keys[n:]
			}
		}
	}
	for _, u := range used {
		l.distinct += len(u)
	}
	return l
}

// link returns a worker's end of a link to a server, which is closed with the test.
func (d divided) link(t *testing.T, id uint64) relay.Sender {
	t.Helper()
	near, far := compact.New(compact.DefaultLimits), compact.New(compact.DefaultLimits)
	s, r, err := near.Open(relay.Link{ID: id, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: relay.NewMemory(1 << 30)}, far.Offer())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close(); r.Close() })
	return s
}

// requested returns how many bytes a worker's pull takes on a link, and has it push the same keys:
// a push refers to the list of the pull before it.
func requested(t *testing.T, link relay.Sender, step int, keys []uint64) (bytes int) {
	t.Helper()
	for _, push := range []bool{false, true} {
		meta := pslite.Meta{Request: true, Push: push, Pull: !push, Timestamp: int32(2*step + 2), DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
		values := []byte{}
		if push {
			meta.Timestamp++
			values = make([]byte, 4*len(keys))
		}
		head, _, ok := link.Encode(nil, &relay.Message{Frames: [][]byte{meta.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, keys), values}})
		if !ok {
			t.Fatalf("a list of %d keys is not encoded", len(keys))
		}
		if !push {
			bytes = len(head)
		}
	}
	return bytes
}

// trained is what came of a run.
type trained struct {
	there, back int           // bytes of TCP payload to the servers' host, and to the workers'
	cpu         time.Duration // of the sidecars
	seconds     float64       // of training
	loss        float64
	aggregate   aggregate.Counts
	shared      shared.Counts
}

// do trains for a number of steps, with these flags of the sidecars.
func (d divided) do(t *testing.T, steps int, flags ...string) (r trained) {
	t.Helper()
	ok := t.Run(fmt.Sprintf("%d steps", steps), func(t *testing.T) {
		net := hoststest.New(t, hosts.Config{Hosts: 3, Pairs: true})
		all := net.Hosts() // the last has the scheduler
		var sidecars []*sidecar.Sidecar
		for _, h := range all {
			sidecars = append(sidecars, sidecar.Start(t, h, build(t, "cmd/psidecar"), "sidecar", append([]string{"--state-dir", t.TempDir(), "--codec", "compact", "--handler", "add"}, flags...)...))
		}
		before := require.Value(net.Traffic())(t)
		node := hosts.Program{build(t, "cmd/psjob"), "--json"}
		worker := append(node[:2:2], "--model", "lr", "--rule", "add", "--learning-rate", "1", "--unit-rows", "--data", d.dir, "--batch", strconv.Itoa(dividedBatch), "--steps", strconv.Itoa(steps))
		running, err := hosts.Job{Scheduler: node, Servers: hosts.Repeat(d.servers, node), Workers: hosts.Repeat(d.workers, worker), Hosts: all[1:2], WorkerHosts: all[:1], Apart: all[2]}.Run(t.Context())
		require.NoError(t, err)
		after := require.Value(net.Traffic())(t)
		r.there, r.back = int(after[0][1].Payload-before[0][1].Payload), int(after[1][0].Payload-before[1][0].Payload)
		for _, w := range running.Workers {
			var report train.WorkerReport
			if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil {
				t.Fatalf("worker %d printed %q: %v", w.Index, w.Stdout.Bytes(), err)
			}
			if report.Loss == nil || !report.AllWorkers {
				t.Fatalf("worker %d does not report the loss: %s", w.Index, w.Stdout.Bytes())
			}
			r.loss, r.seconds = *report.Loss, max(r.seconds, report.Seconds)
		}
		for _, s := range sidecars {
			state := require.Value(s.Connections(t.Context()))(t)
			if state.Aggregate != nil && state.Aggregate.Sums > 0 {
				r.aggregate = *state.Aggregate
			}
			if state.Shared != nil {
				r.shared.Add(*state.Shared)
			}
			s.Unguarded(t)
			s.Stop(t)
			r.cpu += s.Process.CPU()
		}
	})
	if !ok {
		t.FailNow()
	}
	return r
}

// Runs of these lengths are compared: what a job moves at its start, and at its end, when it is
// scored, is not counted. The shorter is longer than an epoch: a worker's first values for a key are
// never summed.
const fewSteps, moreSteps = 80, 580

// TestDividedData prints what sums and shared pulls save where data was divided by psidecar
// partition, next to the share of keys that the workers of a host have in common in a step.
// PSIDECAR_EVAL_WORKERS (4) and PSIDECAR_EVAL_SERVERS (2) are their numbers. Whether the model is
// right is tested, what was saved is not.
func TestDividedData(t *testing.T) {
	require.Measurement(t)
	require.Root(t)
	require.BPF(t)
	workers, servers := setting("WORKERS", 4), setting("SERVERS", 2)
	const n = moreSteps - fewSteps
	var table strings.Builder
	table.WriteString("| data | bytes of a push | in common | | pushes, kB per step | pulls, kB per step | CPU time of sidecars, µs per push | steps/s |\n|:--|--:|--:|:--|--:|--:|--:|--:|\n")
	for _, name := range []string{"rcv1-excerpt.libsvm.xz", "criteo-80k.libsvm.xz"} {
		t.Run(name, func(t *testing.T) {
			d := divided{workers: workers, servers: servers, dir: divide(t, name, workers)}
			used := d.count(t, moreSteps).minus(d.count(t, fewSteps))
			var first trained // compact alone
			for i, how := range []struct {
				name  string
				flags []string
			}{
				{"compact alone", []string{"--share-pulls=false"}},
				{"shared pulls", nil},
				{"and sums", summedFrom(aggregate.Least)},
				{"and sums from 1024 bytes", summedFrom(1024)},
				{"and sums from 256 bytes", summedFrom(256)},
				{"sums from 256 bytes alone", append(summedFrom(256), "--share-pulls=false")},
			} {
				t.Run(how.name, func(t *testing.T) {
					more := d.do(t, moreSteps, how.flags...)
					made := more.minus(d.do(t, fewSteps, how.flags...))
					// What goes to the servers are pushes and the pulls' lists of keys.
					made.there -= used.requests
					if i == 0 {
						first = made
						first.loss = more.loss
					}
					if relative := more.loss/first.loss - 1; math.Abs(relative) > 1e-4 {
						t.Errorf("the loss is %v, with compact alone %v", more.loss, first.loss)
					}
					of := func(bytes, of int) string {
						return fmt.Sprintf("%.1f (%.1f%%)", float64(bytes)/n/1e3, 100*float64(bytes)/float64(of))
					}
					fmt.Fprintf(&table, "| %s | %d | %.1f%% | %s | %s | %s | %.0f | %.0f |\n", strings.TrimSuffix(name, ".libsvm.xz"), 4*used.all/n/workers/servers, 100*used.common(), how.name,
						of(made.there, first.there), of(made.back, first.back), made.cpu.Seconds()*1e6/float64(n*workers*servers), n/made.seconds)
					t.Logf("loss %v, %+v, shared %+v", more.loss, more.aggregate, more.shared)
				})
			}
		})
	}
	write(t, fmt.Sprintf("divided-%d-%d.md", workers, servers), fmt.Sprintf("logistic regression, batch %d, %d workers of a host, %d servers on another; %% of compact alone\n\n%s", dividedBatch, workers, servers, table.String()))
}

// summedFrom returns the flags of sums of pushes, and of shared pulls, from a size on.
func summedFrom(least int) []string {
	return []string{"--aggregate", "host", "--aggregate-wait", "100ms", "--aggregate-least", strconv.Itoa(least), "--share-least", strconv.Itoa(least)}
}

// minus returns the bytes and times of r without those of a shorter run.
func (r trained) minus(o trained) trained {
	return trained{there: r.there - o.there, back: r.back - o.back, cpu: r.cpu - o.cpu, seconds: r.seconds - o.seconds}
}
