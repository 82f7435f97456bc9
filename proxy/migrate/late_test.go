package migrate

import (
	"errors"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// lateJob is two hosts with a worker and a site each, and three servers that add. Sites hear each
// other at once, and the store records at once; a server takes messages when it serves.
type lateJob struct {
	t       *testing.T
	sites   [2]*Site
	up      [2][3][][][]byte // from each site's worker to each server
	sums    [3]map[uint64]float32
	results []error // of the moves
}

func newLateJob(t *testing.T) *lateJob {
	t.Helper()
	j := &lateJob{t: t}
	for i := range j.sums {
		j.sums[i] = map[uint64]float32{}
	}
	for i, name := range siteNames {
		r := route.New(route.NewTable(3))
		r.Open(r.Table())
		r.AddWorker(pslite.WorkerID(i), &memoryLedger{})
		var m pslite.Meta
		m.Reset()
		m.AppID, m.CustomerID, m.Timestamp, m.Push, m.Request = 0, 0, 0, true, true
		m.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		if !r.Request(pslite.WorkerID(i), 0, &m, pslite.AppendKeys(nil, []uint64{99}), pslite.DMLC) {
			t.Fatal("a request does not pass")
		}
		m.Request = false
		r.Answer(0, pslite.WorkerID(i), &m)
		j.sites[i] = New(name, r, 0)
		j.sites[i].SetOthers(siteNames[:])
	}
	return j
}

// begin begins a move of key 1 at a site.
func (j *lateJob) begin(at int, from, to int32) error {
	err := j.sites[at].Begin(Move{From: from, To: to, Keys: []uint64{1}, Handler: Adds})
	j.carry()
	return err
}

// carry carries out what the sites ask for.
func (j *lateJob) carry() {
	for more := true; more; {
		more = false
		for i, s := range j.sites {
			for _, o := range s.Out() {
				more = true
				switch {
				case o.Send != nil:
					j.sites[1-i].Receive(s.Name(), *o.Send)
				case o.Record != nil:
					s.Recorded(o.Record.Batch, nil)
				case o.Result != nil:
					j.results = append(j.results, o.Result.Err)
				case o.Route != nil && !o.Route.ToWorker:
					j.up[i][o.Route.Server] = append(j.up[i][o.Route.Server], o.Route.Frames)
				}
			}
		}
	}
}

// serve has a server take what a site's worker has sent it, and the site its answers.
func (j *lateJob) serve(at, server int) {
	j.t.Helper()
	queue := j.up[at][server]
	j.up[at][server] = nil
	for _, frames := range queue {
		m := decode(frames)
		var values []float32
		for i := range m.Keys().Len() {
			key := m.Keys().At(i)
			if m.Meta.Push {
				j.sums[server][key] += m.Values().Float32(i)
			}
			values = append(values, j.sums[server][key])
		}
		var back pslite.Meta
		back.Reset()
		back.AppID, back.CustomerID, back.Timestamp = m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
		back.Push, back.Pull = m.Meta.Push, m.Meta.Pull
		answer := [][]byte{nil}
		if m.Meta.Pull {
			back.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
			answer = append(answer, m.Data[0], pslite.AppendFloat32(nil, values))
		}
		answer[0] = back.Append(nil, pslite.DMLC)
		require.NoError(j.t, j.sites[at].Router.TakeAnswer(int32(server), pslite.WorkerID(at), decode(answer), pslite.DMLC))
	}
	j.carry()
}

// pushes begins a move of key 1 from server 0 to 1, up to the push, which stays on its way.
func (j *lateJob) pushes() route.Batch {
	j.t.Helper()
	j.sums[0][1] = 5
	require.NoError(j.t, j.begin(0, 0, 1))
	j.serve(0, 0)
	b := route.Batch{Mover: siteNames[0], Number: j.sites[0].Last()}
	if j.sites[0].Phase(b.Number) != writing || len(j.up[0][1]) != 1 {
		j.t.Fatalf("the move is in phase %v, with %d messages on their way", j.sites[0].Phase(b.Number), len(j.up[0][1]))
	}
	return b
}

// A move is given up while its push is on its way. The key then moves to a third server, and from
// there, by another host, to the one that the push was for: it must not be added to a value that is
// complete.
func TestALatePushIsNotAddedToWhatAnotherHostHasMoved(t *testing.T) {
	j := newLateJob(t)
	if !j.sites[0].Expire(j.pushes()) {
		t.Fatal("the move does not expire")
	}
	j.carry()
	if err := j.begin(0, 0, 2); errors.Is(err, ErrLate) {
		j.serve(0, 1)
		err = j.begin(0, 0, 2)
		if err != nil {
			t.Fatalf("when the push has arrived: %v", err)
		}
	}
	for range 2 { // the value is read, written and checked
		j.serve(0, 0)
		j.serve(0, 2)
	}
	require.NoError(t, j.begin(1, 2, 1))
	for range 4 { // the value, and corrections
		j.serve(1, 2)
		j.serve(1, 1)
	}
	j.serve(0, 1)
	for _, s := range j.sites {
		if owner := s.Router.Table().Owner(1); owner != 1 {
			t.Errorf("site %s sends the key to server %d", s.Name(), owner)
		}
	}
	if j.sums[1][1] != 5 {
		t.Errorf("the key is %v, it was 5", j.sums[1][1])
	}
}

// The keys move again, also to the server that a late push is for, only when it is answered: the
// server may handle the pushes and pulls of the next move before it.
func TestAMoveBehindALatePush(t *testing.T) {
	j := newLateJob(t)
	if !j.sites[0].Expire(j.pushes()) {
		t.Fatal("the move does not expire")
	}
	j.carry()
	if err := j.begin(0, 0, 1); !errors.Is(err, ErrLate) {
		t.Fatalf("a move while the push is on its way: %v", err)
	}
	j.serve(0, 1)
	require.NoError(t, j.begin(0, 0, 1))
	for range 6 {
		j.serve(0, 0)
		j.serve(0, 1)
	}
	if owner := j.sites[1].Router.Table().Owner(1); owner != 1 || j.sums[1][1] != 5 || len(j.sites[0].late) > 0 {
		t.Errorf("the key is %v with server %d; %d pushes count as late", j.sums[1][1], owner, len(j.sites[0].late))
	}
}

// With PS_RESEND a push is repeated until it is answered, so a move that has pushed is not given up.
func TestNoPushIsLateWithResend(t *testing.T) {
	j := newLateJob(t)
	j.sites[0].Router.UseResend()
	b := j.pushes()
	if j.sites[0].Expire(b) || j.sites[0].Phase(b.Number) != writing {
		t.Errorf("the move is given up in phase %v", j.sites[0].Phase(b.Number))
	}
}

// The connection ends over which a move has pushed: the move is given up, or was before, and the push
// is not waited for.
func TestAPushEndsWithItsConnection(t *testing.T) {
	for _, expires := range []bool{false, true} {
		j := newLateJob(t)
		b := j.pushes()
		if expires {
			j.sites[0].Expire(b)
			j.carry()
		}
		s, worker := j.sites[0], pslite.WorkerID(0)
		if s.Disconnect(worker, 0) || s.Disconnect(worker, 2) || s.Disconnect(pslite.WorkerID(1), 1) {
			t.Errorf("expired %v: another connection ends the push", expires)
		}
		if !s.Disconnect(worker, 1) || s.Disconnect(worker, 1) {
			t.Errorf("expired %v: its connection does not end the push once", expires)
		}
		j.carry()
		want := ErrDisconnected
		if expires {
			want = ErrExpired
		}
		if s.Moving() > 0 || len(j.results) != 1 || !errors.Is(j.results[0], want) {
			t.Errorf("expired %v: %d moves go on, the results are %v", expires, s.Moving(), j.results)
		}
		if err := j.begin(0, 0, 2); err != nil {
			t.Errorf("expired %v: the key cannot move: %v", expires, err)
		}
	}
}

// Late pushes are bounded: a move that has pushed is not given up beyond that.
func TestLatePushesAreBounded(t *testing.T) {
	j := newLateJob(t)
	b := j.pushes()
	s := j.sites[0]
	s.late = make([]late, maxLate)
	for i := range s.late {
		s.late[i].op = &route.Op{}
	}
	if s.Expire(b) || s.Phase(b.Number) != writing {
		t.Error("the move is given up")
	}
}

// A site still holds, or holds again, the keys of a batch that is over at its mover, which has
// yet to hear the end of a later move: the mover does not know where the keys are, and says so only
// when it does.
func TestAnOldBatchIsSettledAfterALaterMove(t *testing.T) {
	r := route.New(route.NewTable(3))
	r.Open(r.Table())
	s := New("a", r, 7)
	s.SetOthers([]string{"a", "b", "c"})
	keys := []plan.Keys{plan.One(1)}
	later, old := route.Batch{Mover: "b", Number: 3}, route.Batch{Mover: "a", Number: 7}
	s.Receive("b", Message{Kind: Hold, Batch: later, Keys: keys})
	s.Out()
	told := func(kind Kind) (all []Message) {
		s.Receive("c", Message{Kind: kind, Batch: old, Keys: keys})
		for _, o := range s.Out() {
			if o.Send != nil && o.To == "c" {
				all = append(all, *o.Send)
			}
		}
		return all
	}
	for _, kind := range []Kind{Quiet, Holding} {
		if all := told(kind); len(all) > 0 {
			t.Errorf("while the key moves: %+v", all)
		}
	}
	s.Receive("b", Message{Kind: Release, Batch: later, Owner: 2})
	s.Out()
	for _, kind := range []Kind{Quiet, Holding} {
		if all := told(kind); len(all) != 1 || all[0].Kind != Release || all[0].Batch != old || all[0].Owner != 2 {
			t.Errorf("when the key has moved: %+v", all)
		}
	}
}
