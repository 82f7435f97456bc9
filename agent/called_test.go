package agent

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/policy"
)

// everything is what an administrator may allow.
var everything = policy.Allowed{policy.Job: true, policy.Observe: true, policy.Codec: true, policy.Threshold: true, policy.Move: true}

const firstAt, secondAt = "10.0.0.1:9091", "10.0.0.2:9091"

// member is a process of a job; of the scheduler's it listens at the job's address.
func member(scheduler, role string, uid uint32, settings policy.Settings) discover.Process {
	at := netip.MustParseAddrPort(scheduler)
	p := discover.Process{Role: role, Scheduler: at, UID: uid, Owned: true, Settings: settings}
	if role == "scheduler" {
		p.Listens = []netip.AddrPort{at}
	}
	return p
}

func calls(name string) policy.Settings { return policy.Settings{policy.Job: name} }

func keepAll(string) bool { return true }

// A job that runs three times, at whatever addresses, has one name, of which one run
// at a time is the current one.
func TestRunsOfOneName(t *testing.T) {
	c := newCalled(everything, nil)
	for run, scheduler := range []string{firstAt, secondAt, firstAt} {
		c.update(int64(2*run+1), []discover.Process{member(scheduler, "scheduler", 0, calls("ctr")), member(scheduler, "worker", 0, calls("ctr"))}, keepAll)
		if got := c.title(scheduler); got.Name != "ctr" || !got.Current {
			t.Errorf("run %d is %+v", run, got)
		}
		if at, ok := c.scheduler("ctr"); !ok || at != scheduler {
			t.Errorf("in run %d the job is at %s, %v", run, at, ok)
		}
		if r := c.remarks(scheduler); len(r) > 0 {
			t.Errorf("run %d: %q", run, r)
		}
		c.update(int64(2*run+2), nil, keepAll)
	}
	c.update(9, nil, func(string) bool { return false })
	if len(c.jobs)+len(c.titles) > 0 {
		t.Errorf("of jobs that nobody knows any more there is %v, %v", c.jobs, c.titles)
	}
}

// An agent that is replaced knows since when a job has run, by its processes. Those that come later
// change nothing, until all are gone.
func TestRunsSince(t *testing.T) {
	c := newCalled(everything, nil)
	started := map[int]int64{1: 50, 2: 30, 3: 10, 4: 700}
	c.started = func(pid int) (int64, bool) { at, ok := started[pid]; return at, ok }
	of := func(pids ...int) (all []discover.Process) {
		for _, pid := range pids {
			p := member(firstAt, "worker", 0, nil)
			p.PID = pid
			all = append(all, p)
		}
		return all
	}
	for _, step := range []struct {
		now  int64
		pids []int
		want int64
	}{{100, []int{1, 2}, 30}, {200, []int{1, 2, 3}, 30}, {300, []int{1}, 30}, {400, nil, 30}, {800, []int{4, 9}, 700}, {900, nil, 700}, {1000, []int{9}, 1000}} {
		c.update(step.now, of(step.pids...), keepAll)
		if got := c.jobs[firstAt].since; got != step.want {
			t.Errorf("at %d since %d, want %d", step.now, got, step.want)
		}
	}
}

// Of two jobs that claim one name at a time the first has it, and the second when
// that has ended, which its status says.
func TestTwoJobsOfOneName(t *testing.T) {
	c := newCalled(everything, nil)
	mine := member(firstAt, "worker", 0, calls("ctr"))
	theirs := member(secondAt, "worker", 0, calls("ctr"))
	c.update(1, []discover.Process{mine}, keepAll)
	c.update(2, []discover.Process{mine, theirs}, keepAll)
	if got := c.title(firstAt).Name; got != "ctr" {
		t.Errorf("the first is %s", got)
	}
	if got, _ := c.titleOf(&theirs); got != "ctr@"+secondAt || c.title(secondAt).Name != got {
		t.Errorf("the second is %s", got)
	}
	if r := c.remarks(secondAt); len(r) != 1 || !strings.Contains(r[0], "the job at "+firstAt) {
		t.Errorf("its status says %q", r)
	}
	c.update(3, []discover.Process{theirs}, keepAll)
	if got := c.title(secondAt); got.Name != "ctr" || !got.Current || c.title(firstAt).Current || len(c.remarks(secondAt)) > 0 {
		t.Errorf("alone it is %+v, %q", got, c.remarks(secondAt))
	}
}

// Another user's job has another name, and a process that claims to belong to a job
// does not get its name, nor give it one.
func TestTenantsDoNotShareNames(t *testing.T) {
	c := newCalled(everything, nil)
	mine := member(firstAt, "scheduler", 1000, calls("ctr"))
	theirs := member(secondAt, "scheduler", 2000, calls("ctr"))
	evil := member(firstAt, "scheduler", 2000, calls("evil"))
	evil.Listens = nil
	c.update(1, []discover.Process{evil, mine, theirs}, keepAll)
	if a, b := c.title(firstAt).Name, c.title(secondAt).Name; a != "uid:1000/ctr" || b != "uid:2000/ctr" {
		t.Errorf("they are %s and %s", a, b)
	}
	if got, _ := c.titleOf(&evil); got != "" {
		t.Errorf("the other user's process gets %s", got)
	}
	if got, _ := c.titleOf(&mine); got != "uid:1000/ctr" {
		t.Errorf("the job's own gets %q", got)
	}
	unknown := member(firstAt, "worker", 0, calls("x"))
	unknown.Owned = false
	if got, _ := c.titleOf(&unknown); got != "" {
		t.Errorf("a process of nobody knows whom gets %s", got)
	}
}

// In a cluster the pod says more than the process, and whose it is; a pod that the API
// server has not reported has no name.
func TestPodsSayMoreThanProcesses(t *testing.T) {
	pods := map[string]policy.Pod{
		"a": {Namespace: "ads", Owner: "train", Policy: policy.Policy{Move: "false"}},
		"b": {Namespace: "ads", Owner: "train", Settings: calls("ctr"), Wrong: []string{"it is wrong"}},
	}
	c := newCalled(everything, func(uid string) (policy.Pod, bool) { p, ok := pods[uid]; return p, ok })
	in := func(pod, scheduler string, settings policy.Settings) discover.Process {
		p := member(scheduler, "scheduler", 0, settings)
		p.Pod = pod
		return p
	}
	a, b, unknown := in("a", firstAt, policy.Settings{policy.Threshold: "0.9", policy.Move: "true"}), in("b", secondAt, calls("env")), in("c", "10.0.0.3:1", calls("env"))
	c.update(1, []discover.Process{a, b, unknown}, keepAll)
	for p, want := range map[*discover.Process]string{&a: "ads/train", &b: "ads/ctr", &unknown: ""} {
		if got, _ := c.titleOf(p); got != want {
			t.Errorf("pod %s is of %q, want %q", p.Pod, got, want)
		}
	}
	if got := c.title("10.0.0.3:1").Name; got != "10.0.0.3:1" {
		t.Errorf("a job of unknown pods is %s", got)
	}
	if _, wishes := c.titleOf(&a); wishes != (policy.Policy{Threshold: "0.9", Move: "false"}) {
		t.Errorf("it asks for %+v", wishes)
	}
	if got := c.remarks(secondAt); !slices.Equal(got, []string{"it is wrong"}) {
		t.Errorf("its status says %q", got)
	}
	if j, _ := c.claim(firstAt); j.move != "false" {
		t.Errorf("moves: %q", j.move)
	}
}

// Names that a planner has settled hold, but no two jobs have one.
func TestSettledNames(t *testing.T) {
	c := newCalled(everything, nil)
	c.update(1, []discover.Process{member(firstAt, "worker", 0, calls("a")), member(secondAt, "worker", 0, calls("b"))}, keepAll)
	c.takeNames(map[string]string{firstAt: "b", "10.9.9.9:1": "x"})
	if a, b := c.title(firstAt).Name, c.title(secondAt).Name; a != "b" || b != "b@"+secondAt {
		t.Errorf("they are %s and %s", a, b)
	}
	c.takeNames(nil)
	if a, b := c.title(firstAt).Name, c.title(secondAt).Name; a != "a" || b != "b" {
		t.Errorf("then they are %s and %s", a, b)
	}
}

// A job whose owner opts out, and may, is not watched.
func TestLeavingJobsAreNotWatched(t *testing.T) {
	away := member(firstAt, "worker", 0, policy.Settings{policy.Observe: "false"})
	for _, c := range []struct {
		allowed policy.Allowed
		want    bool
	}{{everything, true}, {policy.Allowed{policy.Job: true}, false}} {
		if got := newCalled(c.allowed, nil).leaves(&away); got != c.want {
			t.Errorf("with %v it leaves: %v", c.allowed, got)
		}
	}
}
