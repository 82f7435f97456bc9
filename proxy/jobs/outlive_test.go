package jobs

import (
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy is killed in a job that repeats nothing, while one server has answered its
// part of a pull and another has not, and while a push waits for a move. The next
// one has the answer and the push in its files: the worker gets one answer of both
// servers' values, and the push goes to its server.
func TestWhatOnlyTheProxyHasSurvivesAKill(t *testing.T) {
	dir := t.TempDir()
	placed := Options{Placement: &plan.Placement{K: 2, Server: []int{0, 1}, Runs: []plan.PlacedRun{{Keys: []uint64{7}, Owners: []int32{1}}}}}
	before := jobIn(t, dir, placed)
	worker := &requests{jobs: before.jobs, job: before, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	take := func(m *pslite.Message) {
		t.Helper()
		if passes, err := before.request(worker, m, pslite.DMLC); passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
		require.NoError(t, before.takeRequest(worker, m, pslite.DMLC))
	}
	take(messageOf(1, false, []uint64{7, 8}, nil))
	parts := map[int32]*pslite.Message{}
	for rank := range int32(2) {
		parts[rank] = onlyMessage(t, before.pendingUp[pair{pslite.WorkerID(0), rank}])
	}
	before.locked(func() error {
		before.router.Hold(route.Batch{Mover: "10.0.0.1", Number: 1}, []plan.Keys{plan.One(9)})
		return nil
	})
	take(messageOf(2, true, []uint64{9}, []float32{5}))
	answer := func(x *job, rank int32, value float32) {
		t.Helper()
		m := messageOf(parts[rank].Meta.Timestamp, false, parts[rank].Keys().AppendTo(nil), []float32{value})
		m.Meta.Request = false
		c := &answers{jobs: x.jobs, job: x, sender: pslite.ServerID(int(rank)), peer: pslite.WorkerID(0)}
		if passes, err := x.answer(c, m, pslite.DMLC); passes || err != nil {
			t.Fatalf("an answer to a part passes: %v, %v", passes, err)
		}
		require.NoError(t, x.takeAnswer(c, m, pslite.DMLC))
	}
	answer(before, 1, 70)
	if s := before.state(); s.Kept != 2 || s.Unkept != 0 {
		t.Fatalf("%d messages are kept, %d are not", s.Kept, s.Unkept)
	}

	placed.Dir = dir
	x := remembered(t, before, placed)
	answer(x, 0, 80)
	whole := onlyMessage(t, x.pendingDown[pair{pslite.WorkerID(0), 0}])
	if got := whole.Values(); whole.Meta.Timestamp != 1 || whole.Keys().Len() != 2 || got.Float32(0) != 70 || got.Float32(1) != 80 {
		t.Errorf("the worker gets timestamp %d, %v", whole.Meta.Timestamp, whole.Data)
	}
	if push := onlyMessage(t, x.pendingUp[pair{pslite.WorkerID(0), 0}]); push.Meta.Timestamp != 2 || push.Values().Float32(0) != 5 {
		t.Errorf("server 0 gets timestamp %d, %v", push.Meta.Timestamp, push.Data)
	}
	if s := x.state(); s.Kept != 0 {
		t.Errorf("%d messages are still kept", s.Kept)
	}
}

// messageOf is a worker's push of values, or its pull.
func messageOf(timestamp int32, push bool, keys []uint64, values []float32) *pslite.Message {
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push, m.Meta.Pull = true, push, !push
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp = 0, 0, timestamp
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, keys), pslite.AppendFloat32(nil, values)}
	return &m
}

// onlyMessage is the one of a queue.
func onlyMessage(t *testing.T, queue [][]byte) *pslite.Message {
	t.Helper()
	if len(queue) != 1 {
		t.Fatalf("%d messages, want one", len(queue))
	}
	frames := require.Value(cutMessage(queue[0]))(t)
	var m pslite.Message
	var d pslite.Detector
	require.Value(m.Decode(&d, frames))(t)
	return &m
}
