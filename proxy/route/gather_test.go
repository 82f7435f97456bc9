package route

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// spread is a job of several servers with a tenth to all of its keys displaced, and a
// worker whose requests come in slices.
type spread struct {
	t       *testing.T
	rng     *rand.Rand
	servers []adding
	keys    []uint64
	owners  []plan.Range
	ledger  *lasting
	router  *Router
	slicer  func(key uint64) int32 // the server that the worker asks for a key; nil: its home
	sent    []Out                  // on their way to servers
	back    []Out                  // answers on their way here
	waits   map[ID]*pslite.Message // of the worker's requests
	got     map[ID]*pslite.Message
}

const spreadWorker = int32(9)

func newSpread(t *testing.T, rng *rand.Rand, servers int) *spread {
	s := &spread{t: t, rng: rng, ledger: &lasting{open: map[ID]Kept{}}, waits: map[ID]*pslite.Message{}, got: map[ID]*pslite.Message{}}
	for rank := range int32(servers) {
		s.servers = append(s.servers, adding{})
		home := plan.HomeRange(rank, servers)
		for range 6 {
			s.keys = append(s.keys, home.First+rng.Uint64N(1000), home.Last-rng.Uint64N(1000))
		}
	}
	slices.Sort(s.keys)
	s.keys = slices.Compact(s.keys)
	share := rng.Float64()
	for _, k := range s.keys {
		if rng.Float64() < share {
			s.owners = append(s.owners, plan.Range{Keys: plan.One(k), Owner: int32(rng.IntN(servers))})
		}
	}
	s.restart()
	return s
}

// restart has another router go on with what the ledger has.
func (s *spread) restart() {
	table := NewTable(len(s.servers))
	table.Set(s.owners)
	s.router = New(table)
	s.router.Gather()
	s.router.AddWorker(spreadWorker, s.ledger)
	s.router.Open(table)
	s.carry()
}

func (s *spread) carry() {
	for _, o := range s.router.Out() {
		if o.Quiet != nil {
			continue
		}
		if o.Frames == nil {
			s.t.Fatalf("a request to server %d failed", o.Server)
		}
		if !o.ToWorker {
			s.sent = append(s.sent, o)
			continue
		}
		s.arrive(o.Server, o.Frames)
	}
}

// arrive notes an answer that the worker gets.
func (s *spread) arrive(server int32, frames [][]byte) {
	m := decoded(s.t, frames, pslite.DMLC)
	id := ID{Server: server, App: m.Meta.AppID, Customer: m.Meta.CustomerID, Timestamp: m.Meta.Timestamp}
	asked := s.waits[id]
	if asked == nil || s.got[id] != nil {
		s.t.Fatalf("an answer to %v, which nobody waits for", id)
	}
	if m.Meta.Pull && !bytes.Equal(m.Data[0], asked.Data[0]) {
		s.t.Fatalf("the answer to %v has keys %x, asked for were %x", id, m.Data[0], asked.Data[0])
	}
	s.got[id] = m
}

// ask makes a request for some of the keys, a slice for each server.
func (s *spread) ask(timestamp int32, push, withLens bool, keys []uint64) map[int32]*pslite.Message {
	all := map[int32]*pslite.Message{}
	for rank := range int32(len(s.servers)) {
		var mine []uint64
		for _, k := range keys {
			if s.asked(k) == rank {
				mine = append(mine, k)
			}
		}
		if len(mine) > 0 {
			all[rank] = decoded(s.t, ask(pslite.DMLC, timestamp, push, !push, withLens, mine), pslite.DMLC)
		}
	}
	return all
}

// asked returns the server that the worker asks for a key.
func (s *spread) asked(key uint64) int32 {
	if s.slicer != nil {
		return s.slicer(key)
	}
	return plan.HomeOf(key, len(s.servers))
}

// show shows the router a slice.
func (s *spread) show(server int32, m *pslite.Message) {
	s.waits[ID{Server: server, App: m.Meta.AppID, Customer: m.Meta.CustomerID, Timestamp: m.Meta.Timestamp}] = m
	if s.router.Request(spreadWorker, server, &m.Meta, m.Keys(), pslite.DMLC) {
		s.sent = append(s.sent, Out{Worker: spreadWorker, Server: server, Frames: frames(m, &m.Meta, pslite.DMLC, m.Data)})
	} else if err := s.router.Take(spreadWorker, server, m, pslite.DMLC); err != nil {
		s.t.Fatal(err)
	}
	s.carry()
}

// step has a server answer, or an answer arrive.
func (s *spread) step() bool {
	if n := len(s.sent); n > 0 && (len(s.back) == 0 || s.rng.IntN(2) == 0) {
		i := s.rng.IntN(n)
		o := s.sent[i]
		s.sent = slices.Delete(s.sent, i, i+1)
		answer := s.servers[o.Server].answer(decoded(s.t, o.Frames, pslite.DMLC), pslite.DMLC)
		s.back = append(s.back, Out{Server: o.Server, Frames: answer})
		return true
	}
	if n := len(s.back); n > 0 {
		i := s.rng.IntN(n)
		o := s.back[i]
		s.back = slices.Delete(s.back, i, i+1)
		m := decoded(s.t, o.Frames, pslite.DMLC)
		if s.router.Answer(o.Server, spreadWorker, &m.Meta) {
			s.arrive(o.Server, o.Frames)
		} else if err := s.router.TakeAnswer(o.Server, spreadWorker, m, pslite.DMLC); err != nil {
			s.t.Fatal(err)
		}
		s.carry()
		return true
	}
	return false
}

// Slices that come in any order, with others of later timestamps between them, with
// timers, moves and kills at any moment, are answered as one server with all keys
// answers: each once, with its own keys.
func TestGatheredSlicesAgainstOneServer(t *testing.T) {
	joint := uint64(0)
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			servers := 2 + rng.IntN(4)
			if seed%20 == 0 {
				servers = 70 // more than the bits of a word
			}
			s := newSpread(t, rng, servers)
			if seed%5 == 4 { // the program distributes keys by a slicer of its own
				by := 1 + rng.Uint64N(7)
				s.slicer = func(key uint64) int32 { return int32(hash(key/by) % uint64(servers)) }
			}
			withLens, kills := rng.IntN(3) == 0, rng.IntN(3) == 0
			whole := adding{}
			held := false
			release := func() {
				if held {
					s.router.Release(Batch{Mover: "m", Number: 1}, Unchanged)
					held = false
					s.carry()
				}
			}
			for timestamp := int32(0); timestamp < 24; timestamp += 2 {
				keys := slices.Clone(s.keys)
				for timestamp > 0 && len(keys) > 1 && rng.IntN(4) > 0 {
					i := rng.IntN(len(keys))
					keys = slices.Delete(keys, i, i+1)
				}
				type shown struct {
					server int32
					m      *pslite.Message
				}
				var all []shown
				for i, push := range []bool{true, false}[:1+min(int(timestamp), rng.IntN(2))] {
					for server, m := range s.ask(timestamp+int32(i), push, withLens, keys) {
						all = append(all, shown{server, m})
					}
				}
				rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				for len(all) > 0 {
					switch rng.IntN(8) {
					case 0, 1, 2, 3:
						s.show(all[0].server, all[0].m)
						all = all[1:]
					case 4, 5:
						s.step()
					case 6:
						if rng.IntN(4) == 0 {
							s.router.EndGathers()
							s.carry()
						}
					case 7:
						switch {
						case held:
							release()
						case kills && rng.IntN(3) == 0:
							s.restart()
						case rng.IntN(3) == 0:
							k := s.keys[rng.IntN(len(s.keys))]
							held = s.router.Hold(Batch{Mover: "m", Number: 1}, []plan.Keys{plan.One(k)})
							s.carry()
						}
					}
				}
				release()
				for s.step() || s.router.Gathering() {
					if len(s.sent)+len(s.back) == 0 {
						s.router.EndGathers()
						s.carry()
					}
				}
				if len(s.got) != len(s.waits) {
					t.Fatalf("timestamp %d: %d of %d requests are answered; under way: %v", timestamp, len(s.got), len(s.waits), s.router.UnderWay())
				}
				for _, m := range s.waits {
					if m.Meta.Push {
						whole.answer(m, pslite.DMLC)
					}
				}
				clear(s.waits)
				clear(s.got)
				for key := range whole {
					owner := s.asked(key)
					if owner == plan.HomeOf(key, servers) {
						owner = s.router.Table().Owner(key)
					}
					if got := s.servers[owner][key]; !slices.Equal(got, whole[key]) {
						t.Fatalf("key %d at server %d is %v, want %v", key, owner, got, whole[key])
					}
				}
			}
			joint += s.router.Counts().Joint
			if len(s.router.workers[spreadWorker].open) > 0 || len(s.router.workers[spreadWorker].splits) > 0 || len(s.ledger.open) > 0 || len(s.ledger.whole) > 0 {
				t.Fatalf("left: %v, in the ledger %v", s.router.UnderWay(), s.ledger.open)
			}
		})
	}
	if joint == 0 && !t.Failed() {
		t.Error("nothing was gathered")
	}
}

// Once the slices of some timestamps have come, each owner gets one message of those
// of the next, and what a pull brings is right.
func TestEachOwnerGetsOneJointPart(t *testing.T) {
	const servers = 4
	s := newSpread(t, rand.New(rand.NewPCG(3, 4)), servers)
	s.owners = nil
	for i, k := range s.keys {
		s.owners = append(s.owners, plan.Range{Keys: plan.One(k), Owner: int32(i % servers)})
	}
	s.restart()
	whole := adding{}
	for timestamp := range int32(12) {
		push := timestamp%2 == 0
		want := map[int32][][]byte{}
		for server, m := range s.ask(timestamp, push, false, s.keys) {
			want[server] = whole.answer(m, pslite.DMLC)
			s.show(server, m)
		}
		if parts := len(s.sent); timestamp >= 8 && parts != servers {
			t.Errorf("timestamp %d: %d parts, want %d", timestamp, parts, servers)
		}
		if s.router.Gathering() { // of the first timestamps nothing is known
			t.Fatalf("timestamp %d: slices wait for others, and all are there", timestamp)
		}
		for s.step() {
		}
		for id, m := range s.got {
			if got := frames(m, &m.Meta, pslite.DMLC, m.Data); !slices.EqualFunc(got, want[id.Server], bytes.Equal) {
				t.Errorf("timestamp %d, server %d: %x, want %x", timestamp, id.Server, got, want[id.Server])
			}
		}
		if len(s.got) != servers {
			t.Fatalf("timestamp %d: %d answers", timestamp, len(s.got))
		}
		clear(s.got)
		clear(s.waits)
	}
	if c := s.router.Counts(); c.Ungathered != 0 || c.Joint == 0 {
		t.Errorf("%+v", c)
	}
}

// A slice that does not come is waited for until EndGathers was called twice, and
// the next timestamps do not wait.
func TestSlicesThatDoNotCome(t *testing.T) {
	const servers = 3
	s := newSpread(t, rand.New(rand.NewPCG(5, 6)), servers)
	s.owners = nil
	for i, k := range s.keys {
		s.owners = append(s.owners, plan.Range{Keys: plan.One(k), Owner: int32(i % servers)})
	}
	s.restart()
	timestamp := int32(0)
	for ; timestamp < 6; timestamp++ {
		for server, m := range s.ask(timestamp, true, false, s.keys) {
			s.show(server, m)
		}
		for s.step() {
		}
	}
	for skip := 2; skip <= 1<<maxPenalty; skip *= 2 {
		m := s.ask(timestamp, true, false, s.keys)[0]
		timestamp++
		if s.show(0, m); !s.router.Gathering() || len(s.sent) != 0 {
			t.Fatalf("a slice goes before others that may come")
		}
		s.router.EndGathers()
		if s.carry(); len(s.sent) != 0 {
			t.Fatal("it goes at the first EndGathers")
		}
		s.router.EndGathers()
		if s.carry(); len(s.sent) == 0 || s.router.Gathering() {
			t.Fatal("it still waits after the second EndGathers")
		}
		for s.step() {
		}
		for range skip - 1 { // these come whole, and none waits
			for server, m := range s.ask(timestamp, true, false, s.keys) {
				if s.show(server, m); s.router.Gathering() {
					t.Fatalf("a slice waits, %d timestamps after one in vain, want %d", timestamp, skip)
				}
			}
			timestamp++
			for s.step() {
			}
		}
	}
	if c := s.router.Counts().Ungathered; c != uint64(math.Log2(1<<maxPenalty)) {
		t.Errorf("%d timestamps in vain", c)
	}
}

// Where a job retransmits, nothing is gathered.
func TestNothingIsGatheredOfJobsThatRepeat(t *testing.T) {
	s := newSpread(t, rand.New(rand.NewPCG(7, 8)), 3)
	s.router.UseResend()
	for timestamp := range int32(12) {
		for server, m := range s.ask(timestamp, true, false, s.keys) {
			if s.show(server, m); s.router.Gathering() {
				t.Fatal("a slice waits")
			}
		}
		s.sent = nil
	}
	if c := s.router.Counts(); c.Joint != 0 || c.Split == 0 {
		t.Errorf("%+v", c)
	}
}
