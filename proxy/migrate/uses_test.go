package migrate

import (
	"errors"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// pair is two sites of a job of two servers that add, each of which has a worker. Messages arrive at once.
type pair struct {
	*testing.T
	sites  [2]*Site
	stores [2]map[place]float32
	result *Result
	used   int32 // timestamps
}

// place is a key of an app and command.
type place struct {
	app, head int32
	key       uint64
}

func newPair(t *testing.T) *pair {
	p := &pair{T: t, stores: [2]map[place]float32{{}, {}}}
	for i, name := range siteNames {
		r := route.New(route.NewTable(2))
		r.Open(r.Table())
		p.sites[i] = New(name, r, 0)
		p.sites[i].SetOthers(siteNames[:])
		r.AddWorker(pslite.WorkerID(i), &memoryLedger{})
	}
	return p
}

// settle carries out what both sites ask for.
func (p *pair) settle() {
	for more := true; more; {
		more = false
		for i, s := range p.sites {
			for _, o := range s.Out() {
				more = true
				switch {
				case o.Send != nil:
					p.sites[1-i].Receive(s.Name(), *o.Send)
				case o.Record != nil:
					s.Recorded(o.Record.Batch, nil)
				case o.Result != nil:
					p.result = o.Result
				case o.Route.ToWorker:
				default:
					m := p.serve(o.Route.Server, decode(o.Route.Frames))
					if r := s.Router; r.Answer(o.Route.Server, o.Route.Worker, &m.Meta) {
						continue
					}
					if err := s.Router.TakeAnswer(o.Route.Server, o.Route.Worker, m, pslite.DMLC); err != nil {
						p.Fatal(err)
					}
				}
			}
		}
	}
}

// serve has a server take a request, which becomes its answer.
func (p *pair) serve(server int32, m *pslite.Message) *pslite.Message {
	m.Meta.Request = false
	var values []float32
	for i := range m.Keys().Len() {
		at := place{m.Meta.AppID, m.Meta.Head, m.Keys().At(i)}
		if m.Meta.Push {
			p.stores[server][at] += m.Values().Float32(i)
		}
		values = append(values, p.stores[server][at])
	}
	if m.Data = m.Data[:2]; m.Meta.Push {
		m.Data, m.Meta.DataTypes = nil, nil
	} else {
		m.Data[1] = pslite.AppendFloat32(nil, values)
	}
	return m
}

// push has a host's worker push 1 to a key of a server.
func (p *pair) push(host, server int, at place) {
	p.used++
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.AppID, m.Meta.CustomerID, m.Meta.Head, m.Meta.Timestamp, m.Meta.Request, m.Meta.Push = at.app, at.app, at.head, p.used, true, true
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, []uint64{at.key}), pslite.AppendFloat32(nil, []float32{1})}
	m.Meta.DataSize = 12
	r, id := p.sites[host].Router, pslite.WorkerID(host)
	if r.Request(id, int32(server), &m.Meta, m.Keys(), pslite.DMLC) {
		m := p.serve(int32(server), &m)
		r.Answer(int32(server), id, &m.Meta)
	} else if err := r.Take(id, int32(server), &m, pslite.DMLC); err != nil {
		p.Fatal(err)
	}
	p.settle()
}

// move has the first host move a key, and returns why it did not.
func (p *pair) move(key uint64, from, to int32) error {
	p.result = nil
	if err := p.sites[0].Begin(Move{From: from, To: to, Keys: []uint64{key}, Handler: Adds}); err != nil {
		return err
	}
	p.settle()
	if p.result == nil {
		p.Fatal("the move does not end")
	}
	return p.result.Err
}

// want checks which server has what was pushed to a key, as the workers find it.
func (p *pair) want(at place, server int, value float32) {
	p.Helper()
	if got := p.stores[server][at]; got != value {
		p.Errorf("key %d of app %d, command %d is %v at server %d, want %v", at.key, at.app, at.head, got, server, value)
	}
}

// A key moves under the command that any host's worker uses it under, and stays where hosts use it under several.
func TestCommandsOfOtherHosts(t *testing.T) {
	p := newPair(t)
	p.push(0, 0, place{0, 5, 1})
	p.push(1, 0, place{0, 6, 2})
	require.NoError(t, p.move(2, 0, 1))
	p.push(0, 0, place{0, 6, 2})
	p.push(1, 0, place{0, 6, 2})
	p.want(place{0, 6, 2}, 1, 3)
	p.push(1, 0, place{0, 6, 1})
	var stay *route.StayError
	if err := p.move(1, 0, 1); !errors.As(err, &stay) {
		t.Errorf("a key of two tables moves: %v", err)
	}
	p.want(place{0, 5, 1}, 0, 1)
	p.want(place{0, 6, 1}, 0, 1)
}

// Another app keeps keys from moving, whichever host it is on. One that comes later finds its keys at home, and those
// that have moved can be brought home.
func TestAppsOfOtherHosts(t *testing.T) {
	p := newPair(t)
	p.push(0, 0, place{0, 0, 1})
	require.NoError(t, p.move(1, 0, 1))
	p.push(1, 0, place{7, 0, 1}) // the app's first request
	p.push(1, 0, place{0, 0, 1})
	p.push(0, 0, place{7, 0, 1})
	p.want(place{0, 0, 1}, 1, 2)
	p.want(place{7, 0, 1}, 0, 2)
	p.push(0, 0, place{0, 0, 2})
	if err := p.move(2, 0, 1); !errors.Is(err, route.ErrApps) {
		t.Errorf("with two apps a key moves: %v", err)
	}
	if err := p.move(1, 1, 0); err != nil {
		t.Errorf("a key does not come home: %v", err)
	}
	p.push(1, 0, place{0, 0, 1})
	p.want(place{0, 0, 1}, 0, 3)
	p.want(place{7, 0, 1}, 0, 2)
}

// Where a worker asks a server for keys of another's range, nothing moves but home, and what was asked of the server is
// its own.
func TestSlicersOfOtherHosts(t *testing.T) {
	p := newPair(t)
	p.push(0, 0, place{0, 0, 1})
	require.NoError(t, p.move(1, 0, 1))
	p.push(1, 1, place{0, 0, 200}) // at home with server 0
	p.push(0, 1, place{0, 0, 200})
	p.push(1, 0, place{0, 0, 1})
	p.want(place{0, 0, 200}, 1, 2)
	p.want(place{0, 0, 1}, 1, 2)
	if home := plan.HomeOf(200, 2); home != 0 {
		t.Fatalf("key 200 is at home with server %d", home)
	}
	p.push(0, 0, place{0, 0, 2})
	if err := p.move(2, 0, 1); !errors.Is(err, route.ErrSlicer) {
		t.Errorf("with another slicer a key moves: %v", err)
	}
	if err := p.move(1, 1, 0); err != nil {
		t.Errorf("a key does not come home: %v", err)
	}
	p.want(place{0, 0, 1}, 0, 2)
}

// Keys that were placed from the start can be brought home, too, where the program has a slicer of its own.
func TestPlacedKeysOfASlicerGoHome(t *testing.T) {
	p := newPair(t)
	for _, s := range p.sites {
		s.Router.Table().Set([]plan.Range{{Keys: plan.Keys{First: 1, Last: 300}, Owner: 1}})
	}
	p.push(0, 0, place{0, 0, 1})
	p.push(1, 1, place{0, 0, 200})
	p.push(0, 1, place{0, 0, 200})
	p.want(place{0, 0, 1}, 1, 1)
	require.NoError(t, p.move(1, 1, 0))
	p.push(1, 0, place{0, 0, 1})
	p.want(place{0, 0, 1}, 0, 2)
	p.want(place{0, 0, 200}, 1, 2)
}

// Two hosts that begin to move keys, each of another app, both give up.
func TestMoversOfTwoApps(t *testing.T) {
	p := newPair(t)
	p.push(0, 0, place{0, 0, 1})
	p.push(1, 0, place{7, 0, 2})
	for i, s := range p.sites {
		require.NoError(t, s.Begin(Move{From: 0, To: 1, Keys: []uint64{uint64(1 + i)}, Handler: Adds}))
	}
	p.settle()
	for i, s := range p.sites {
		if keys, _ := s.Router.Table().Displaced(); keys > 0 || s.Moving() > 0 || len(s.Router.Holds()) > 0 {
			t.Errorf("host %d: %d keys are displaced, %d groups move, %d are held", i, keys, s.Moving(), len(s.Router.Holds()))
		}
	}
}

// A Hold that arrives when its batch is over, and some of its keys have moved on, changes no key's owner.
func TestAHoldThatComesTooLate(t *testing.T) {
	p := newPair(t)
	for _, key := range []uint64{1, 2} {
		p.push(0, 0, place{0, 0, key})
		p.push(1, 0, place{0, 0, key})
	}
	require.NoError(t, p.sites[0].Begin(Move{From: 0, To: 1, Keys: []uint64{1, 2}, Handler: Adds}))
	late := Message{Kind: Hold, Batch: route.Batch{Mover: siteNames[0], Number: p.sites[0].Last()}, Keys: []plan.Keys{{First: 1, Last: 2}}}
	p.settle()
	require.NoError(t, p.move(1, 1, 0))
	p.sites[1].Receive(siteNames[0], late)
	p.sites[1].Repeat()
	p.settle()
	for _, key := range []uint64{1, 2} {
		p.push(1, 0, place{0, 0, key})
	}
	p.want(place{0, 0, 1}, 0, 3)
	p.want(place{0, 0, 2}, 1, 3)
}
