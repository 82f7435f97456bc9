package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
	"github.com/psidecar/psidecar/test/sidecar"
)

// Trial is a job of one fork.
type Trial struct {
	Name    string   `json:"name"`
	Program []string `json:"program"` // path, in the folder, and arguments
	Servers int      `json:"servers"`
	Workers int      `json:"workers"`
	Env     []string `json:"env"`
	Says    string   `json:"says"` // by every worker; by every server where there are no workers
	// OnlyWorkers says that other nodes do not end by themselves, or not in order,
	// without a sidecar either: they are killed when all workers have ended.
	OnlyWorkers bool `json:"only_workers"`
	// Exact says that it fails where a threshold holds back a part of its values: it
	// runs without one.
	Exact bool `json:"exact"`
	// Tries is how often the job is begun, for programs that fail now and then without a
	// sidecar, too; 0 means once.
	Tries int `json:"tries"`
	// Flags are those of sidecars to try besides the usual ones. With --planner-act one
	// planner plans for both hosts, and keys must move.
	Flags [][]string `json:"flags"`
	// Read says that its data messages are read: some must be encoded. Otherwise none
	// may be, and status must say whose they are.
	Read bool `json:"read"`
	// Whose is what status says of messages that are not read, if it says it.
	Whose string `json:"whose"`
}

// A job of a fork ends with sidecars as it does without, with every set of flags.
func TestForks(t *testing.T) {
	folder := require.Asked(t, "PSLITE_FORKS", "a folder with programs of PS-lite's forks and a jobs.json that lists jobs of theirs")
	list := require.Value(os.ReadFile(filepath.Join(folder, "jobs.json")))(t)
	var trials []Trial
	if err := json.Unmarshal(list, &trials); err != nil {
		t.Fatalf("jobs.json: %v", err)
	}
	program := hoststest.BuildJob(t, "cmd/psidecar")
	for _, x := range trials {
		x.Program[0] = filepath.Join(folder, x.Program[0])
		t.Run(x.Name+"/directly", func(t *testing.T) { x.run(t, hoststest.New(t, hosts.Config{Hosts: 2})) })
		for _, flags := range append([][]string{{"--codec", "compact"}, {"--threshold", "0.99"}, {"--act"}}, x.Flags...) {
			if x.Exact && slices.Contains(flags, "--threshold") {
				continue
			}
			t.Run(x.Name+"/"+strings.Join(flags, " "), func(t *testing.T) { x.beside(t, program, flags) })
		}
	}
}

// beside runs the job with a sidecar of these flags on each host, and looks at what they
// say of it meanwhile.
func (x Trial) beside(t *testing.T, program string, flags []string) {
	net := hoststest.New(t, hosts.Config{Hosts: 2})
	var sidecars []*sidecar.Sidecar
	moves := slices.Contains(flags, "--planner-act")
	for i, h := range net.Hosts() {
		own := slices.Clone(flags)
		switch {
		case moves && i == 0:
			own = append(own, "--planner-store", filepath.Join(t.TempDir(), "plans"), "--planner-decide-every", "1s")
		case moves:
			own = slices.DeleteFunc(own, func(f string) bool { return f == "--planner-act" })
			own = append(own, "--planner", sidecars[0].Address(sidecar.Planner))
		}
		sidecars = append(sidecars, sidecar.Start(t, h, program, "sidecar", own...))
	}
	ended := make(chan struct{})
	seen := make(chan sight)
	go func() { seen <- watch(t.Context(), sidecars, ended) }()
	x.run(t, net)
	close(ended)
	saw := <-seen
	t.Logf("%+v", saw)
	if saw.links == 0 {
		t.Error("no connection went through proxies on both hosts")
	}
	if moves && saw.moved == 0 {
		t.Error("no key has moved")
	}
	if x.Read && saw.encoded == 0 {
		t.Error("no message was encoded")
	}
	if !x.Read && saw.encoded > 0 {
		t.Errorf("%d messages were encoded that are not read", saw.encoded)
	}
	for fork := range saw.unread {
		if fork != x.Whose {
			t.Errorf("messages are said to be %q, want %q", fork, x.Whose)
		}
	}
	if x.Whose != "" && len(saw.unread) == 0 {
		t.Errorf("no proxy says that there are messages of %s", x.Whose)
	}
	for why, n := range saw.failed {
		if !usual[why] {
			t.Errorf("%d connections failed: %s", n, why)
		}
	}
}

// usual are reasons of connections that end, or do not come about, because of the job:
// nodes connect before others listen, and end while others send.
var usual = map[string]bool{"unreachable": true, "reset_by_job": true, "reset_by_far_side": true}

// sight is what sidecars said while a job ran.
type sight struct {
	links   int             // of proxies at once, at most
	encoded uint64          // messages, of connections that were seen
	moved   uint64          // keys, from servers of one host, at most
	placed  int             // keys that are not at home, at most
	summed  uint64          // pushes that went with another's, at most
	unread  map[string]bool // whose messages are not read
	failed  map[string]uint64
	remarks map[string]bool // of agents
	dialect map[string]bool
	keys    uint64 // that one agent counted, at most
}

// watch asks the sidecars until the job has ended, and once more.
func watch(ctx context.Context, sidecars []*sidecar.Sidecar, ended <-chan struct{}) sight {
	saw := sight{unread: map[string]bool{}, failed: map[string]uint64{}, remarks: map[string]bool{}, dialect: map[string]bool{}}
	encoded := map[[2]any]uint64{}
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		case <-time.After(20 * time.Millisecond):
		}
		for _, s := range sidecars {
			state, err := s.Connections(ctx)
			if err != nil {
				continue
			}
			links := 0
			for _, c := range state.Connections {
				if c.Kind == "link" {
					links++
				}
				if c.Unread != "" {
					saw.unread[c.Unread] = true
				}
				encoded[[2]any{s, c.ID}] = c.ToFar.Encoded
			}
			saw.links = max(saw.links, links)
			for _, j := range state.Jobs {
				saw.moved, saw.placed = max(saw.moved, j.Moved), max(saw.placed, j.Displaced)
			}
			if state.Aggregate != nil {
				saw.summed = max(saw.summed, state.Aggregate.Carried)
			}
			for why, n := range state.Errors {
				saw.failed[why] = n
			}
			var jobs page.Jobs
			if s.Get(ctx, sidecar.Page, "/api/v1/jobs", &jobs) != nil {
				continue
			}
			for _, j := range jobs.Jobs {
				saw.dialect[j.Dialect] = true
				saw.keys = max(saw.keys, j.DistinctKeys)
				for _, r := range j.Remarks {
					saw.remarks[strings.TrimLeft(r, "0123456789")] = true
				}
			}
		}
	}
	for _, n := range encoded {
		saw.encoded += n
	}
	return saw
}

// run runs the job and checks what its nodes say.
func (x Trial) run(t *testing.T, net *hosts.Net) {
	t.Helper()
	program := hosts.Program(x.Program)
	j := hosts.Job{Scheduler: program, Servers: hosts.Repeat(x.Servers, program), Workers: hosts.Repeat(x.Workers, program), Hosts: net.Hosts(), Env: x.Env}
	for try := 1; ; try++ {
		err := x.try(t.Context(), j)
		if err == nil {
			return
		}
		if try >= x.Tries {
			t.Fatal(err)
		}
		t.Logf("once more, since it fails now and then without a sidecar, too: %v", err)
	}
}

// forkPatience is how long a job may take.
const forkPatience = 10 * time.Minute

func (x Trial) try(ctx context.Context, j hosts.Job) error {
	ctx, cancel := context.WithTimeout(ctx, forkPatience)
	defer cancel()
	r, err := j.Start(ctx)
	if err != nil {
		return err
	}
	if x.OnlyWorkers {
		for _, n := range r.Workers {
			select {
			case <-n.Process.Done():
			case <-ctx.Done():
			}
		}
		for _, n := range append(r.Servers, r.Scheduler) {
			_ = n.Signal(os.Kill) // it may have ended
		}
	}
	err = r.Wait()
	for _, n := range r.Workers {
		if x.OnlyWorkers && n.Err != nil {
			return fmt.Errorf("worker %d: %w: %s", n.Index, n.Err, n.Stderr.Bytes())
		}
	}
	if err != nil && !x.OnlyWorkers {
		return err
	}
	speakers := r.Workers
	if len(speakers) == 0 {
		speakers = r.Servers
	}
	for _, n := range speakers {
		if said := n.Stdout.String() + n.Stderr.String(); !strings.Contains(said, x.Says) {
			return fmt.Errorf("%s %d did not say %q: %s", n.Role, n.Index, x.Says, said[max(0, len(said)-1000):])
		}
	}
	return nil
}
