package jobs

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/pslite"
)

// oneJob returns a job of a scheduler, two servers and a worker, which is local.
func oneJob(t *testing.T) *job {
	t.Helper()
	j, err := New(Options{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var m pslite.Meta
	m.Control.Cmd = pslite.AddNode
	for i, id := range []int32{pslite.SchedulerID, pslite.ServerID(0), pslite.ServerID(1), pslite.WorkerID(0)} {
		m.Control.Nodes = append(m.Control.Nodes, pslite.Node{ID: id, Hostname: "10.0.0.1", Port: int32(9000 + i)})
	}
	var nodes pslite.Table
	nodes.Learn(&m)
	x, err := j.newJob("10.0.0.1:9000", nodes, 2)
	if err != nil {
		t.Fatal(err)
	}
	x.addLocal(pslite.WorkerID(0))
	t.Cleanup(x.close)
	return x
}

// Requests of BytePS, whose answers take the same connection, pass as long as
// their keys are at home; where one is displaced they fail, and none is lost in
// silence.
func TestBytePSIsCarried(t *testing.T) {
	x := oneJob(t)
	c := &requests{job: x, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	var m pslite.Message
	m.Meta.Request, m.Meta.Push = true, true
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{7}), make([]byte, 4)}
	if passes, err := x.request(c, &m, pslite.BytePSRaw); !passes || err != nil {
		t.Errorf("with all keys at home a request passes: %v, %v", passes, err)
	}
	x.router.Table().Set([]plan.Range{{Keys: plan.One(8), Owner: 1}})
	if passes, err := x.request(c, &m, pslite.BytePSRaw); !passes || err != nil {
		t.Errorf("with other keys displaced a request passes: %v, %v", passes, err)
	}
	m.Data[0] = pslite.AppendKeys(nil, []uint64{8})
	if passes, err := x.request(c, &m, pslite.BytePSRaw); passes || !errors.Is(err, errUnroutable) {
		t.Errorf("with its own key displaced a request passes: %v, %v", passes, err)
	}
}
