package migrate

import (
	"errors"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// A move is checked by a pull: it comes to an end where the server takes pushes as
// it was said to, and where not the key stays with the server that has its value.
func TestMoveByHandler(t *testing.T) {
	const key, value, old = 7, 0.1, -1234.5
	adds := func(has, pushed float32) float32 { return has + pushed }
	assigns := func(_, pushed float32) float32 { return pushed }
	for _, c := range []struct {
		name    string
		said    Handler
		rule    func(has, pushed float32) float32
		old     float32 // what the new owner has of the key before
		fails   error
		refused bool // before anything is asked
	}{
		{name: "adds", said: Adds, rule: adds},
		{name: "adds to an old value", said: Adds, rule: adds, old: old},
		{name: "assigns", said: Assigns, rule: assigns},
		{name: "assigns over an old value", said: Assigns, rule: assigns, old: old},
		{name: "was to assign, adds to an old value", said: Assigns, rule: adds, old: old, fails: ErrHandler},
		{name: "was to add, takes a step against it", said: Adds, rule: func(has, pushed float32) float32 { return has - 0.1*pushed }, fails: ErrHandler},
		{name: "was to add, ignores pushes", said: Adds, rule: func(has, _ float32) float32 { return has }, fails: ErrHandler},
		{name: "neither", said: Opaque, rule: adds, fails: ErrHandler, refused: true},
		{name: "unknown", said: Unknown, rule: adds, fails: ErrHandler, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := route.New(route.NewTable(2))
			r.Open(route.NewTable(2))
			r.AddWorker(pslite.WorkerID(0), &memoryLedger{})
			s := New(siteNames[0], r, 0)
			var like pslite.Meta
			like.Reset()
			like.AppID, like.CustomerID, like.Timestamp, like.Request, like.Push = 0, 0, 1, true, true
			like.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
			if !r.Request(pslite.WorkerID(0), 0, &like, pslite.Keys{}, pslite.DMLC) || !r.Answer(0, pslite.WorkerID(0), &like) {
				t.Fatal("a request with no key in it does not pass")
			}
			err := s.Begin(Move{From: 0, To: 1, Keys: []uint64{key}, Handler: c.said})
			if c.refused {
				if !errors.Is(err, c.fails) || len(s.Out()) > 0 {
					t.Fatalf("it begins: %v", err)
				}
				return
			}
			require.NoError(t, err)
			stores := [2]float32{value, c.old}
			result := answered(t, s, func(server int32, push bool, pushed float32) float32 {
				if push {
					stores[server] = c.rule(stores[server], pushed)
				}
				return stores[server]
			})
			owner := r.Table().Owner(key)
			if !errors.Is(result.Err, c.fails) || (result.Err == nil) != (c.fails == nil) || owner != map[bool]int32{true: 1}[c.fails == nil] {
				t.Errorf("it ends with %v, server %d has the key", result.Err, owner)
			}
			if stores[owner] != value || len(r.Holds()) > 0 {
				t.Errorf("its owner has %v, want %v; %d batches are held", stores[owner], float32(value), len(r.Holds()))
			}
		})
	}
}

// answered answers what a site asks servers, and the store, until its move is over.
func answered(t *testing.T, s *Site, serve func(server int32, push bool, value float32) float32) *Result {
	t.Helper()
	for range 100 {
		for _, o := range s.Out() {
			switch {
			case o.Result != nil:
				return o.Result
			case o.Record != nil:
				s.Recorded(o.Record.Batch, nil)
			case o.Route != nil:
				m := decode(o.Route.Frames)
				m.Meta.Request = false
				pushed := float32(0)
				if m.Meta.Push {
					pushed = m.Values().Float32(0)
				}
				has := serve(o.Route.Server, m.Meta.Push, pushed)
				if m.Meta.Push {
					m.Data, m.Meta.DataTypes = nil, nil
				} else {
					m.Data[1] = pslite.AppendFloat32(nil, []float32{has})
				}
				require.NoError(t, s.Router.TakeAnswer(o.Route.Server, o.Route.Worker, m, pslite.DMLC))
			}
		}
	}
	t.Fatal("the move does not end")
	return nil
}
