package jobs

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// Keys of several tables are refused with the reason, and the others of their group go on.
func TestKeysThatStay(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 1 << 24, From: 0, To: 1, First: []uint64{1, 2, 3}})
		w := x.work[0]
		x.work = nil
		x.stay(w, &route.StayError{Keys: []uint64{3}})
		return nil
	})
	if len(x.work) != 1 || !slices.Equal(x.work[0].keys, []uint64{1, 2}) {
		t.Errorf("left is %v", x.work)
	}
	all := x.reports()
	if len(all) != 1 || all[0].GetDone() || all[0].GetPendingKeys() != 2 || len(all[0].GetRefused()) != 1 {
		t.Fatalf("reported is %v", all)
	}
	if r := all[0].GetRefused()[0]; r.GetReason() != "commands" || r.GetKeys() != 1 || r.GetExample() != 3 {
		t.Errorf("refused is %v", r)
	}
	if s := x.state(); s.Stays != "commands" || s.StaysWhy == "" {
		t.Errorf("the state says %q, %q", s.Stays, s.StaysWhy)
	}
	x.locked(func() error {
		x.stay(&work{plan: 1 << 24, from: 0, to: 1, keys: []uint64{1, 2}}, route.ErrSlicer)
		return nil
	})
	if all := x.reports(); len(all) != 1 || !all[0].GetDone() {
		t.Errorf("after the others were refused the report is %v", all)
	}
	x.locked(func() error {
		x.work = nil
		x.stay(&work{plan: 1 << 24, from: 0, to: 1, keys: []uint64{4, 5}}, &route.StayError{Keys: []uint64{4}})
		return nil
	})
	if len(x.work) > 0 {
		t.Errorf("of a plan that is over there is left %v", x.work)
	}
}

// A key whose value cannot go is refused by itself, and the others of its group go on.
func TestKeysWhoseValuesStay(t *testing.T) {
	x := oneJob(t, Options{Planner: "127.0.0.1:1", Handler: migrate.Adds})
	x.locked(func() error {
		x.accept(&api.MoveBatch{Batch: 1 << 24, From: 0, To: 1, First: []uint64{1, 2, 3}})
		batch := route.Batch{Mover: x.site.Name(), Number: 7}
		x.underWay[batch.Number] = &attempt{work: x.work[0]}
		x.work = nil
		x.result(&migrate.Result{Batch: batch, Move: migrate.Move{Keys: []uint64{1, 2, 3}, To: 1}, Err: &migrate.ValueError{Keys: []uint64{2}, Err: errors.New("it is NaN")}})
		return nil
	})
	if len(x.work) != 1 || !slices.Equal(x.work[0].keys, []uint64{1, 3}) {
		t.Errorf("left is %v", x.work)
	}
	all := x.reports()
	if len(all) != 1 || all[0].GetPendingKeys() != 2 || len(all[0].GetRefused()) != 1 || all[0].GetRefused()[0].GetReason() != "value" {
		t.Errorf("reported is %v", all)
	}
	if s := x.state(); s.Stays != "" {
		t.Errorf("the state says that no key moves: %q", s.StaysWhy)
	}
}

// What is known of how a job uses its keys, and whose have moved, outlives the proxy.
func TestUsesAreKept(t *testing.T) {
	o := Options{Planner: "127.0.0.1:1", Handler: migrate.Adds}
	dir := t.TempDir()
	before := jobIn(t, dir, o)
	c := &requests{job: before, sender: pslite.WorkerID(0), peer: pslite.ServerID(0)}
	for head := range int32(2) {
		var m pslite.Message
		m.Meta.Reset()
		m.Meta.Request, m.Meta.Push, m.Meta.AppID, m.Meta.Head, m.Meta.Timestamp = true, true, 3, head, head
		m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{7}), make([]byte, 4)}
		m.Meta.DataSize = 12
		if passes, err := before.request(c, &m, pslite.DMLC); !passes || err != nil {
			t.Fatalf("a request passes: %v, %v", passes, err)
		}
	}
	before.router.MoveApp(before.router.AppOf())
	require.NoError(t, before.mayBeDisplaced())
	before.close()
	o.Dir, o.Log = dir, before.jobs.log
	j := require.Value(New(o))(t)
	require.NoError(t, j.remember())
	x := j.named(before.name, before.run)
	if x == nil {
		t.Fatal("the job is not remembered")
	}
	t.Cleanup(x.close)
	if got, want := x.router.KnownUses(), before.router.KnownUses(); !reflect.DeepEqual(got, want) || x.router.App() != 3 {
		t.Errorf("known are %+v, app %d; want %+v, app 3", got, x.router.App(), want)
	}
}
