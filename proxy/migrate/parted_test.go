package migrate

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

const (
	partedServers = 3
	partedWidth   = 2*partedServers + 1
)

var partedKeys = []uint64{1, 2} // both at home with server 0

// partedSite is a host of a job of three servers, with a worker and a site.
type partedSite struct {
	site         *Site
	up, down     [partedServers][][][]byte // to each server, and back
	words        []Message                 // from the other site
	records      []Record
	timestamp    int32
	asked        []uint64
	push, waits  bool // of what is asked; something of the worker's waits
	pushed, seen [2][partedWidth]float32
}

// Follow, Busy and Waits implement route.Follower.
func (h *partedSite) Follow([]plan.Keys)     {}
func (h *partedSite) Busy() bool             { return false }
func (h *partedSite) Waits([]plan.Keys) bool { return h.waits }

// partedJob is two of them, and servers that add.
type partedJob struct {
	*rapid.T
	hosts   [2]*partedSite
	servers [partedServers]map[uint64][]float32
	store   map[uint64]int32
	results []error
}

// Two values go into parts, into others, to other servers and home while two workers push
// and pull them, whichever way messages are delayed, lost between sites, or moves given up:
// no worker reads less than it has read, or pushed itself, and in the end all are where the
// store says, and have the sums.
func TestValuesGoIntoPartsBesideRequests(t *testing.T) {
	done, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		j := &partedJob{T: t, store: map[uint64]int32{1: 0, 2: 0}}
		for i := range j.servers {
			j.servers[i] = map[uint64][]float32{}
		}
		for i := range j.hosts {
			h := &partedSite{}
			r := route.New(route.NewTable(partedServers))
			r.SetFollower(h)
			r.AddWorker(pslite.WorkerID(i), &memoryLedger{})
			r.Open(r.Table())
			h.site = New(siteNames[i], r, 0)
			h.site.SetOthers(siteNames[:])
			j.hosts[i] = h
		}
		for i, h := range j.hosts {
			j.ask(h, i, true, partedKeys)
		}
		j.settle()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			j.step()
		}
		for _, h := range j.hosts {
			h.waits = false
		}
		j.settle()
		j.check()
		for _, err := range j.results {
			if done++; err != nil {
				done--
				refused++
			}
		}
	})
	if t.Logf("%d moves came to an end, %d were given up", done, refused); done == 0 || refused == 0 {
		t.Errorf("%d moves came to an end, %d were given up", done, refused)
	}
}

// step has one thing happen.
func (j *partedJob) step() {
	i := rapid.IntRange(0, 1).Draw(j.T, "host")
	h := j.hosts[i]
	switch rapid.IntRange(0, 9).Draw(j.T, "what") {
	case 0:
		if h.asked == nil {
			j.ask(h, i, rapid.Bool().Draw(j.T, "push"), partedKeys[rapid.IntRange(0, 1).Draw(j.T, "first"):])
		}
	case 1:
		j.begin(h)
	case 2:
		h.site.Repeat()
	case 3:
		h.waits = rapid.IntRange(0, 3).Draw(j.T, "waits") == 0
	case 4:
		if rapid.IntRange(0, 5).Draw(j.T, "expires") == 0 && h.site.Phase(h.site.Last()) == quieting {
			h.site.Expire(route.Batch{Mover: h.site.Name(), Number: h.site.Last()})
		}
	default:
		j.deliver(h, i, true)
	}
	j.carry()
}

// begin begins to move a key from where this host has it.
func (j *partedJob) begin(h *partedSite) {
	to := int32(rapid.IntRange(0, partedServers-1).Draw(j.T, "to"))
	if parts := rapid.IntRange(0, partedServers).Draw(j.T, "parts"); parts > 1 {
		to = plan.Parted(parts)
	}
	key := rapid.SampledFrom(partedKeys).Draw(j.T, "key")
	if from := h.site.Router.Table().Owner(key); from != to {
		_ = h.site.Begin(Move{From: from, To: to, Keys: []uint64{key}, Handler: Adds})
	}
}

// deliver has one of the messages to or from a host arrive, or one between sites be lost;
// false: there is none.
func (j *partedJob) deliver(h *partedSite, i int, lossy bool) bool {
	var ways []func()
	for s := range h.up {
		if len(h.up[s]) > 0 {
			ways = append(ways, func() { j.serve(h, s) })
		}
		if len(h.down[s]) > 0 {
			ways = append(ways, func() { j.answered(h, i, s) })
		}
	}
	if len(h.words) > 0 {
		ways = append(ways, func() {
			m := h.words[0]
			h.words = h.words[1:]
			if !lossy || rapid.IntRange(0, 6).Draw(j.T, "lost") > 0 {
				h.site.Receive(siteNames[1-i], m)
			}
		})
	}
	if len(h.records) > 0 {
		ways = append(ways, func() { j.record(h) })
	}
	if len(ways) == 0 {
		return false
	}
	ways[rapid.IntRange(0, len(ways)-1).Draw(j.T, "message")]()
	return true
}

// record has the store take in a move, as the planner's does.
func (j *partedJob) record(h *partedSite) {
	r := h.records[0]
	h.records = h.records[1:]
	var err error
	for _, k := range r.Keys {
		if at := j.store[k.First]; at != r.From && at != r.To {
			err = errors.New("the key is elsewhere")
		} else {
			j.store[k.First] = r.To
		}
	}
	h.site.Recorded(r.Batch, err)
}

// ask has a host's worker push 1 to all values of keys, or pull them.
func (j *partedJob) ask(h *partedSite, i int, push bool, keys []uint64) {
	h.timestamp++
	h.asked, h.push = keys, push
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push, m.Meta.Pull, m.Meta.Timestamp = true, push, !push, h.timestamp
	m.Meta.AppID, m.Meta.CustomerID = 0, 0
	m.Meta.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
	m.Data = [][]byte{pslite.AppendKeys(nil, keys), {}}
	if push {
		ones := slices.Repeat([]float32{1}, partedWidth*len(keys))
		m.Data[1] = pslite.AppendFloat32(nil, ones)
	}
	id := pslite.WorkerID(i)
	if h.site.Router.Request(id, 0, &m.Meta, m.Keys(), pslite.DMLC) {
		h.up[0] = append(h.up[0], append([][]byte{m.Meta.Append(nil, pslite.DMLC)}, m.Data...))
	} else if err := h.site.Router.Take(id, 0, &m, pslite.DMLC); err != nil {
		j.Fatal(err)
	}
	j.carry()
}

// serve has a server take the next message of a host.
func (j *partedJob) serve(h *partedSite, s int) {
	m := decode(h.up[s][0])
	h.up[s] = h.up[s][1:]
	var back pslite.Meta
	back.Reset()
	back.AppID, back.CustomerID, back.Timestamp = m.Meta.AppID, m.Meta.CustomerID, m.Meta.Timestamp
	back.Push, back.Pull = m.Meta.Push, m.Meta.Pull
	var values []float32
	n := m.Keys().Len()
	for i := range n {
		key := m.Keys().At(i)
		v := j.servers[s][key]
		if m.Meta.Push {
			width := len(m.Data[1]) / 4 / n
			if v == nil {
				v = make([]float32, width)
			} else if len(v) != width {
				j.Fatalf("%d values are pushed to key %d on server %d, which has %d", width, key, s, len(v))
			}
			for at := range v {
				v[at] += m.Values().Float32(i*width + at)
			}
			j.servers[s][key] = v
		}
		values = append(values, v...)
	}
	var data [][]byte
	if m.Meta.Pull {
		back.DataTypes = []pslite.DataType{pslite.Uint64, pslite.Float}
		data = [][]byte{m.Data[0], pslite.AppendFloat32(nil, values)}
	}
	h.down[s] = append(h.down[s], append([][]byte{back.Append(nil, pslite.DMLC)}, data...))
}

// answered has a server's answer come to a host.
func (j *partedJob) answered(h *partedSite, i, s int) {
	frames := h.down[s][0]
	h.down[s] = h.down[s][1:]
	m := decode(frames)
	if h.site.Router.Answer(int32(s), pslite.WorkerID(i), &m.Meta) {
		j.take(h, frames)
	} else if err := h.site.Router.TakeAnswer(int32(s), pslite.WorkerID(i), m, pslite.DMLC); err != nil {
		j.Fatal(err)
	}
}

// take gives a host's worker its answer.
func (j *partedJob) take(h *partedSite, frames [][]byte) {
	m := decode(frames)
	if m.Meta.Timestamp != h.timestamp || m.Meta.Push != h.push || !h.push && m.Keys().Len() != len(h.asked) {
		j.Fatalf("the worker waits for %d, and gets %+v with %d keys", h.timestamp, m.Meta, m.Keys().Len())
	}
	for n, key := range h.asked {
		at := slices.Index(partedKeys, key)
		for w := range partedWidth {
			if h.push {
				h.pushed[at][w]++
				continue
			}
			v := m.Values().Float32(n*partedWidth + w)
			if v < h.seen[at][w] || v < h.pushed[at][w] {
				j.Fatalf("value %d of key %d is %v: the worker has seen %v and pushed %v", w, key, v, h.seen[at][w], h.pushed[at][w])
			}
			h.seen[at][w] = v
		}
	}
	h.asked = nil
}

// carry carries out what the sites have to say.
func (j *partedJob) carry() {
	for i, h := range j.hosts {
		for _, o := range h.site.Out() {
			switch {
			case o.Send != nil:
				j.hosts[1-i].words = append(j.hosts[1-i].words, *o.Send)
			case o.Record != nil:
				h.records = append(h.records, *o.Record)
			case o.Result != nil:
				j.results = append(j.results, o.Result.Err)
			case o.Route.Frames == nil:
				j.Fatal("a request could not be dispatched")
			case o.Route.ToWorker:
				j.take(h, o.Route.Frames)
			default:
				h.up[o.Route.Server] = append(h.up[o.Route.Server], o.Route.Frames)
			}
		}
	}
}

// settle has all arrive, until nothing is under way; where two sites hold against each
// other their moves expire.
func (j *partedJob) settle() {
	for round := range 200 {
		for i, h := range j.hosts {
			for j.deliver(h, i, false) {
				j.carry()
			}
		}
		busy := false
		for _, h := range j.hosts {
			busy = busy || h.site.Moving() > 0 || len(h.site.Router.Holds()) > 0 || h.asked != nil || len(h.words) > 0
			for number := range h.site.moves {
				if round%5 == 4 {
					h.site.Expire(route.Batch{Mover: h.site.Name(), Number: number})
				}
			}
			h.site.Repeat()
		}
		j.carry()
		if !busy {
			return
		}
	}
	j.Fatalf("after 200 rounds something is under way: %v, %v", j.hosts[0].site.Router.UnderWay(), j.hosts[1].site.Router.UnderWay())
}

func (j *partedJob) check() {
	for i, h := range j.hosts {
		if h.site.Moving() > 0 || len(h.site.Router.Holds()) > 0 || h.asked != nil || len(h.site.parting) > 0 {
			j.Fatalf("host %d: %d moves, holds %v, asked %v, parting %v", i, h.site.Moving(), h.site.Router.Holds(), h.asked, h.site.parting)
		}
		for key, owner := range j.store {
			if at := h.site.Router.Table().Owner(key); at != owner {
				j.Fatalf("key %d is with %d by the store, with %d by host %d", key, owner, at, i)
			}
		}
		j.ask(h, i, false, partedKeys)
		j.settle()
		for at, key := range partedKeys {
			for w := range partedWidth {
				if want := j.hosts[0].pushed[at][w] + j.hosts[1].pushed[at][w]; h.seen[at][w] != want {
					j.Fatalf("value %d of key %d is %v, want %v", w, key, h.seen[at][w], want)
				}
			}
		}
	}
}

// A site that does not say that it knows of parts, as an older one does not, keeps values
// whole.
func TestAnOlderSiteKeepsValuesWhole(t *testing.T) {
	r := route.New(route.NewTable(partedServers))
	r.AddWorker(pslite.WorkerID(0), &memoryLedger{})
	r.Open(r.Table())
	var m pslite.Message
	m.Meta.Reset()
	m.Meta.Request, m.Meta.Push = true, true
	r.Request(pslite.WorkerID(0), 0, &m.Meta, nil, pslite.DMLC)
	r.Answer(0, pslite.WorkerID(0), &m.Meta)
	s := New("a", r, 0)
	s.SetOthers([]string{"b"})
	require.NoError(t, s.Begin(Move{From: 0, To: plan.Parted(2), Keys: []uint64{1}, Handler: Adds}))
	s.Out()
	b := route.Batch{Mover: "a", Number: s.Last()}
	s.Receive("b", Message{Kind: Quiet, Batch: b, Keys: []plan.Keys{plan.One(1)}})
	if p := s.Phase(s.Last()); p != quieting {
		t.Fatalf("the move has come to %v", p)
	}
	s.Receive("b", Message{Kind: Quiet, Batch: b, Keys: []plan.Keys{plan.One(1)}, Owner: plan.Parted(2)})
	if p := s.Phase(s.Last()); p != reading {
		t.Errorf("with a site that knows of parts the move has come to %v", p)
	}
}
