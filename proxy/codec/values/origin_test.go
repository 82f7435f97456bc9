package values

import (
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// registration is what a node tells the scheduler, or what that tells a node of
// these.
func registration(nodes ...pslite.Node) [][]byte {
	m := pslite.Meta{Request: true, Control: pslite.Control{Cmd: pslite.AddNode, Nodes: nodes}}
	return [][]byte{m.Append(nil, pslite.DMLC)}
}

// Rules of a job hold on links whose listener did not know the job, from when
// one of its nodes registers, while it is the only one there.
func TestJobsAreKnownByRegistration(t *testing.T) {
	const job = "198.18.0.2:9000" // where dialled links go
	worker := pslite.Node{Role: pslite.Worker, Hostname: "198.18.0.1", Port: 40000, ID: 9}
	other := pslite.Node{Role: pslite.Scheduler, Hostname: "198.18.0.9", Port: 9000, ID: pslite.SchedulerID}
	e := newEnds(t, Rule{Job: job, Unpulled: true, Threshold: 0.9})
	e.unnamed = true
	values, scheduler := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.worker, e.server, "")
	q := request{push: true, keys: []uint64{1}, vals: make([]float32, 1000)}
	for i := range q.vals {
		q.vals[i] = float32(i)
	}
	coded := func() bool {
		t.Helper()
		before := values.encoded
		q.timestamp++
		values.carry(t, q.frames())
		return values.encoded-before < 2000
	}
	if coded() {
		t.Error("a job's rule holds before its name is known")
	}
	scheduler.carry(t, registration(worker))
	if !coded() {
		t.Error("a job's rule does not hold once a node has registered")
	}
	told := e.dial(t, e.worker, e.server, "ps1")
	told.carry(t, registration(worker)) // of a node that is back: names nobody
	told.carry(t, registration(pslite.Node{Role: pslite.Scheduler, Hostname: "198.18.0.2", Port: 9000, ID: pslite.SchedulerID}, worker))
	if e.worker.jobOf("here") != job {
		t.Errorf("after the scheduler's list the job is %q", e.worker.jobOf("here"))
	}
	told.carry(t, registration(other, worker))
	if got := e.worker.jobOf("here"); got != "" {
		t.Errorf("of two jobs links are of %q", got)
	}
	for _, w := range []*way{values, scheduler, told} {
		w.close()
	}
	if len(e.worker.origins) != 0 {
		t.Errorf("%d origins are left", len(e.worker.origins))
	}
}

// A job that one listener knows is that of links from the same place whose
// listener does not: an agent hands a listener over again once it knows the job,
// and both take connections.
func TestJobsAreKnownByOtherLinks(t *testing.T) {
	e := newEnds(t)
	named := e.dial(t, e.worker, e.server, "ps9")
	e.unnamed = true
	unnamed := e.dial(t, e.worker, e.server, "ps8")
	sender := unnamed.sender.(*Sender)
	if sender.follow(); sender.job != "198.18.0.1:8000" {
		t.Errorf("the job of the link is %q", sender.job)
	}
	named.close()
	if sender.follow(); sender.job != "198.18.0.1:8000" {
		t.Errorf("when the other link has closed it is %q", sender.job)
	}
	unnamed.close()
	if len(e.worker.origins) != 0 {
		t.Errorf("%d origins are left", len(e.worker.origins))
	}
}

// Where a job begins in a place while links of the one before are still open, links are its own
// once those have closed.
func TestJobsThatFollowEachOther(t *testing.T) {
	e := newEnds(t)
	e.unnamed = true
	list := func(at string) [][]byte {
		return registration(pslite.Node{Role: pslite.Scheduler, Hostname: at, Port: 9000, ID: pslite.SchedulerID}, pslite.Node{Role: pslite.Worker, Hostname: "198.18.0.1", Port: 40000, ID: 9})
	}
	before, values := e.dial(t, e.worker, e.server, "ps1"), e.dial(t, e.worker, e.server, "ps9")
	before.carry(t, list("198.18.0.8"))
	after, others := e.dial(t, e.worker, e.server, "ps1"), e.dial(t, e.worker, e.server, "ps9")
	after.carry(t, list("198.18.0.9"))
	sender := others.sender.(*Sender)
	check := func(when, want string) {
		t.Helper()
		if sender.follow(); sender.job != want {
			t.Errorf("%s the job is %q, want %q", when, sender.job, want)
		}
	}
	check("while there are two jobs", "")
	before.close()
	check("once the first is over", "198.18.0.9:9000")
	values.close()
	after.close()
	check("when the second's link to the scheduler has closed", "198.18.0.9:9000")
	others.close()
	if len(e.worker.origins) != 0 {
		t.Errorf("%d origins are left", len(e.worker.origins))
	}
}

// A node reconnects once it has registered and has its id. Its job is known
// although in between it had no link: by the barriers and heartbeats that it sends
// to the scheduler.
func TestJobsAreKnownAfterReconnecting(t *testing.T) {
	const job = "198.18.0.2:9000" // where dialled links go
	barrier := pslite.Control{Cmd: pslite.Barrier, BarrierGroup: pslite.WorkerGroup | pslite.ServerGroup}
	for name, c := range map[string]struct {
		identity string
		request  bool
		control  pslite.Control
		want     string
	}{
		"barrier":                  {"ps9", true, barrier, job},
		"barrier of an instance":   {"ps9", true, pslite.Control{Cmd: pslite.InstanceBarrier, BarrierGroup: pslite.WorkerGroup}, job},
		"heartbeat":                {"ps8", false, pslite.Control{Cmd: pslite.Heartbeat, Nodes: []pslite.Node{{ID: 8}}}, job},
		"barrier of somebody":      {"", true, barrier, ""},
		"the scheduler's answer":   {"ps1", false, barrier, ""},
		"the scheduler's nodes":    {"ps1", true, pslite.Control{Cmd: pslite.AddNode, Nodes: []pslite.Node{{ID: 9}}}, ""},
		"an acknowledged message":  {"ps9", false, pslite.Control{Cmd: pslite.Ack, MsgSig: 7}, ""},
		"the end of the scheduler": {"ps1", false, pslite.Control{Cmd: pslite.Terminate}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnds(t)
			e.unnamed = true
			registering := e.dial(t, e.worker, e.server, "")
			registering.carry(t, registration(pslite.Node{Role: pslite.Worker, Hostname: "198.18.0.1", Port: 40000}))
			if got := e.worker.jobOf("here"); got != job {
				t.Fatalf("after the registration the job is %q", got)
			}
			registering.close()

			values, scheduler := e.dial(t, e.worker, e.server, "ps9"), e.dial(t, e.worker, e.server, c.identity)
			defer values.close()
			defer scheduler.close()
			m := pslite.Meta{Request: c.request, Control: c.control}
			scheduler.carry(t, [][]byte{m.Append(nil, pslite.BytePSRaw)})
			sender := values.sender.(*Sender)
			if sender.follow(); sender.job != c.want {
				t.Errorf("the job of the other link is %q, want %q", sender.job, c.want)
			}
		})
	}
}
