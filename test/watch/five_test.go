package watch

import (
	"context"
	"maps"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psidecar/psidecar/cmd/psjob/train"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestFiveJobs measures how many of the 1,000 hottest keys of each of five jobs, the
// slowest of which moves half a megabyte a second and the fastest what two cores let
// it, an agent with default flags shows 30 s after the first, and whether the counts
// that it shows are as right as it says.
//
// Three figures of keys are told, each of 1,000:
//   - of the whole job: of the hottest of the job until its end, those that are among
//     the 1,000 shown at 30 s. An agent that counts everything would not have all of
//     them, since it does not know what comes after.
//   - so far: of the 1,000 shown, those that are among the hottest of what the job had
//     used when it was asked: whose true count is no less than that of the true
//     1,000th. This is what is judged.
//   - so far, but for ties: with as many as their true counts are at most the error
//     that the agent names beside its own 1,000th key below that of the true 1,000th.
func TestFiveJobs(t *testing.T) {
	require.BPF(t)
	require.Measurement(t)
	psjob, psidecar := hoststest.BuildJob(t, "cmd/psjob"), hoststest.BuildJob(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	a := startAgent(t, psidecar, "--cgroup", net.Cgroup())
	defer a.stop(t)
	var all sync.WaitGroup
	for i, args := range fiveJobs {
		program := hosts.Program{psjob, "--json"}
		j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(2, program), Hosts: net.Hosts(), Port: 9000 + i}
		for w := range 2 {
			log := filepath.Join(dir, strconv.Itoa(i)+"-"+strconv.Itoa(w))
			flags := []string{
				"--model", "count", "--access-log", log, "--count-skew", "0.9", "--count-keys", strconv.Itoa(args.keys),
				"--count-batch", strconv.Itoa(args.batch), "--steps", strconv.Itoa(args.steps),
			}
			j.Workers = append(j.Workers, append(append(hosts.Program{psjob, "--json"}, flags...), args.flags...))
		}
		all.Go(func() {
			if running, err := j.Run(ctx); err != nil {
				t.Errorf("%s: %v\n%s", args.name, err, running.Workers[0].Stderr.String())
			}
		})
	}
	sleep(ctx, 30*time.Second)
	shown := make([]fiveShown, len(fiveJobs))
	for i := range fiveJobs {
		shown[i] = showOf(t, ctx, a, ":"+strconv.Itoa(9000+i))
	}
	var agent page.Agent // now: its figures are of the last seconds
	require.NoError(t, a.get(ctx, "/api/v1/agent", nil, &agent))
	all.Wait()
	for i, args := range fiveJobs {
		whole, pushes := map[uint64]uint64{}, map[uint64]uint64{}
		for w := range 2 {
			_, keys := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)+"-"+strconv.Itoa(w)))
			for k, n := range keys {
				whole[k] += n.Pulls + n.Pushes
				pushes[k] += 2 * n.Pushes
			}
		}
		if !maps.Equal(pushes, usesOf(t, args.keys, args.batch, steps{args.steps, args.steps})) {
			t.Fatalf("%s: the workers did not use the keys that this test takes for the truth", args.name)
		}
		j, keys := shown[i].job, shown[i].keys
		before, after := shown[i].before, shown[i].after
		soFar := usesOf(t, args.keys, args.batch, steps{(before[0] + after[0] + 1) / 2, (before[1] + after[1] + 1) / 2})
		named := keys.Hottest[len(keys.Hottest)-1].Error
		strict, found, fair := shownOf(whole, keys, 0), shownOf(soFar, keys, 0), shownOf(soFar, keys, named)
		right := rightOf(usesOf(t, args.keys, args.batch, before.plus(-1)), usesOf(t, args.keys, args.batch, after.plus(2)), keys)
		t.Logf("%s: %.1f MB/s, %.1f steps/s: of the 1000 hottest keys of %d: %d of the whole job, %d so far, %d but for ties (the 1,000th has %d uses, named error %d); %d of %d shown counts are as right as it says; keys of one in %d, of %d of %d requests, %.2f%% of a core",
			args.name, j.BytesPerSecond/1e6, j.StepsPerSecond, len(soFar), strict, found, fair, soFar[keysOfCounts(soFar)[999]], named, right, len(keys.Hottest),
			j.Sampling.OneIn, j.Sampling.Sampled, j.Sampling.Requests, j.Sampling.CostPercent)
		if found < 950 {
			t.Errorf("%s: %d of the 1,000 hottest keys so far, want 950", args.name, found)
		}
		if right < len(keys.Hottest)*9/10 {
			t.Errorf("%s: %d of %d counts are as right as the agent says, want nine of ten", args.name, right, len(keys.Hottest))
		}
	}
	t.Logf("at 30 s looking at keys takes %.2f%% of a core, budget %.1f%%, beyond it since steps must be looked at: %v",
		agent.Sampling.CostPercent, agent.Sampling.BudgetPercent, agent.Sampling.OverBudget)
}

// fiveShown is what the agent shows of one job.
type fiveShown struct {
	job           page.Job
	keys          page.Keys
	before, after steps // that were done when the keys were asked for, and after that
}

// steps is how many each of two workers has done.
type steps [2]int

func (s steps) plus(n int) steps { return steps{max(s[0]+n, 0), max(s[1]+n, 0)} }

// showOf asks the agent for the 1,000 hottest keys of the job whose name ends so.
func showOf(t *testing.T, ctx context.Context, a *process, end string) (s fiveShown) {
	t.Helper()
	var jobs page.Jobs
	require.NoError(t, a.get(ctx, "/api/v1/jobs", nil, &jobs))
	for _, j := range jobs.Jobs {
		if strings.HasSuffix(j.Name, end) {
			s.job = j
		}
	}
	if s.job.Sampling == nil || s.job.Sampling.Requests == 0 {
		t.Fatalf("the agent knows nothing of the job that ends in %s: %+v\n%s", end, jobs, &a.log)
	}
	stepsNow := func() (done steps) {
		var servers page.Servers
		require.NoError(t, a.get(ctx, "/api/v1/servers", url.Values{"job": {s.job.Name}}, &servers))
		for _, w := range servers.Workers {
			rank, err := strconv.Atoi(strings.TrimPrefix(w.Name, "worker"))
			if err != nil || rank >= len(done) {
				t.Fatalf("a worker that is called %q", w.Name)
			}
			done[rank] = int(w.Requests / 4) // it pushes to and pulls from two servers
		}
		return done
	}
	s.before = stepsNow()
	require.NoError(t, a.get(ctx, "/api/v1/keys", url.Values{"job": {s.job.Name}, "n": {"1000"}}, &s.keys))
	if len(s.keys.Hottest) == 0 {
		t.Fatalf("the agent shows no key of %s\n%s", s.job.Name, &a.log)
	}
	s.after = stepsNow()
	return s
}

// usesOf returns how often two workers with default flags but these have used each
// key after some steps: what they use is a function of their flags.
func usesOf(t *testing.T, keys, batch int, done steps) map[uint64]uint64 {
	t.Helper()
	spread := require.Value(dataset.ParseKeyMap("spread"))(t)
	of := require.Value(train.CountKeys(train.CountOptions{Keys: keys, Batch: batch, Skew: 0.9}, 1, &spread))(t)
	uses := map[uint64]uint64{}
	for rank, n := range done {
		for step := range n {
			for _, k := range of(rank, step) {
				uses[k] += 2
			}
		}
	}
	return uses
}

// shownOf returns how many of the keys that are shown are among the 1,000 with the
// highest true counts: theirs are at most so far below that of the 1,000th.
func shownOf(truth map[uint64]uint64, shown page.Keys, tie uint64) (found int) {
	least := truth[keysOfCounts(truth)[999]]
	for _, k := range shown.Hottest {
		if truth[uint64(k.Key)]+tie >= least {
			found++
		}
	}
	return found
}

// rightOf returns how many shown counts are as right as the agent says, by what was
// used for certain before it was asked and what may have been after.
func rightOf(before, after map[uint64]uint64, shown page.Keys) (right int) {
	for _, k := range shown.Hottest {
		off := k.Error + k.Estimated
		if k.Accesses+off >= before[uint64(k.Key)] && k.Accesses <= after[uint64(k.Key)]+off {
			right++
		}
	}
	return right
}

// fiveJobs go on for some 40 s each.
var fiveJobs = []struct {
	name               string
	keys, batch, steps int
	flags              []string
}{
	{"0.5 MB/s", 20000, 250, 900, []string{"--count-compute", "40ms"}},
	{"5 MB/s", 20000, 2500, 900, []string{"--count-compute", "40ms"}},
	{"20 MB/s", 20000, 4000, 900, []string{"--value-length", "8", "--count-compute", "40ms"}},
	{"100 MB/s", 20000, 4000, 800, []string{"--value-length", "64", "--count-compute", "40ms"}},
	{"1 GB/s", 4000, 1500, 700, []string{"--value-length", "4096"}},
}
