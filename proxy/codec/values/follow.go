package values

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/relay"
)

// What waits of a key is for the server that has the key: when that is another one,
// it goes to the stream of the worker's pushes to that one. Both may have files. In
// one transaction it leaves the first, and is noted there as on its way; in another
// it arrives in the second, where its id is noted; then both notes go. A kill in
// between leaves it in the first file, on its way, or in both, and then the second
// says so: the next proxy counts it once.

// process is a process by where it connects from and its node id.
type process struct {
	origin string
	node   int32
}

func (o *owner) process() process {
	id, ok := pslite.ParseIdentity([]byte(o.node))
	if !ok {
		id = pslite.Empty
	}
	return process{o.origin, id}
}

// Follow has what waits of a worker's pushes of keys in these ascending ranges, of
// any where keys is nil, be for the servers that own the keys. Servers are the
// job's, by rank, as owner tells them; streams to others stay as they are. No push
// of a key that has another owner now may be on its way to the one before.
func (c *Codec) Follow(origin string, worker int32, servers []netip.AddrPort, keys []plan.Keys, owner func(key uint64) int32) {
	c.follows.Lock()
	defer c.follows.Unlock()
	ranks := map[netip.AddrPort]int32{}
	for rank, at := range servers {
		if at.IsValid() {
			ranks[at] = int32(rank)
		}
	}
	for o, st := range c.streamsOfProcess(process{origin, worker}) {
		rank, ok := ranks[netip.AddrPortFrom(o.server.Addr().Unmap(), o.server.Port())]
		if !ok {
			continue
		}
		leaves := func(key uint64) (to netip.AddrPort, ok bool) {
			if keys != nil && !within(keys, key) {
				return to, false
			}
			if now := owner(key); now != rank && int(now) < len(servers) && now >= 0 {
				to = servers[now]
			}
			return to, to.IsValid()
		}
		c.moveAway(st, o, leaves)
	}
}

// WaitsOf reports whether something waits of a worker's pushes of keys in these ascending
// ranges.
func (c *Codec) WaitsOf(origin string, worker int32, keys []plan.Keys) bool {
	for _, st := range c.streamsOfProcess(process{origin, worker}) {
		if st.waitsOf(keys) {
			return true
		}
	}
	return false
}

func (s *stream) waitsOf(keys []plan.Keys) (found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guarded(func() {
		for key, l := range s.dense {
			if within(keys, key) && l.Holds(0, l.Len()) {
				found = true
			}
		}
		for _, l := range s.narrow {
			for _, c := range l.index.cells {
				if c.place != 0 && within(keys, c.key) && l.holds(&c) {
					found = true
				}
			}
		}
	})
	return found
}

// within reports whether a key is in one of the ascending ranges.
func within(keys []plan.Keys, key uint64) bool {
	i := sort.Search(len(keys), func(i int) bool { return keys[i].Last >= key })
	return i < len(keys) && keys[i].First <= key
}

// streamsOfProcess returns the streams of a process.
func (c *Codec) streamsOfProcess(p process) map[owner]*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := map[owner]*stream{}
	for o, st := range c.streams {
		if o.origin == p.origin && o.process() == p {
			of[o] = st
		}
	}
	return of
}

// moveAway has what waits in a stream go to others, as leaves says by key.
func (c *Codec) moveAway(st *stream, o owner, leaves func(key uint64) (netip.AddrPort, bool)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	found := map[netip.AddrPort]*leaving{}
	st.guarded(func() { found = st.leaving(leaves) })
	for at, away := range found {
		to := o
		to.server = at
		dst := c.join(to, true)
		if dst == nil { // it waits here, and is tried again with the next move
			c.counts.why(ReasonStreams)
			continue
		}
		ok, err := st.moveTo(dst, to, away)
		if err != nil {
			c.log.Error("what waits of a worker's pushes does not go along with keys that moved", "worker", o.node, "from", o.server, "to", at, "error", err)
		}
		c.leave(dst)
		if !ok {
			return
		}
	}
}

// leaving are layers, or parts of them, that are for another server.
type leaving struct {
	dense  []uint64
	narrow map[layerID][]cell
}

// leaving returns by server the waiting values that belong to another one; the
// caller holds s.mu.
func (s *stream) leaving(leaves func(key uint64) (netip.AddrPort, bool)) map[netip.AddrPort]*leaving {
	all := map[netip.AddrPort]*leaving{}
	to := func(at netip.AddrPort) *leaving {
		if all[at] == nil {
			all[at] = &leaving{narrow: map[layerID][]cell{}}
		}
		return all[at]
	}
	for key := range s.dense {
		if at, ok := leaves(key); ok {
			to(at).dense = append(to(at).dense, key)
		}
	}
	for id, l := range s.narrow {
		for _, c := range l.index.cells {
			if c.place == 0 {
				continue
			}
			if at, ok := leaves(c.key); ok && l.holds(&c) {
				to(at).narrow[id] = append(to(at).narrow[id], c)
			}
		}
	}
	return all
}

// holds reports whether something of a key waits.
func (l *narrowLayer) holds(c *cell) bool { return l.Holds(int(c.place)-1, int(c.place)-1+c.size()) }

// moveTo moves what leaves the stream to another one; both are the same worker's, and
// the caller holds s.mu. Without ok all that waited in the stream is lost, which was
// said.
func (s *stream) moveTo(dst *stream, to owner, away *leaving) (ok bool, err error) {
	k := &keptStream{Origin: to.origin, Node: to.node, Server: to.server, App: to.app, Customer: to.customer}
	id := [2]uint64{rand.Uint64(), rand.Uint64()}
	var noted *mapped.Extent
	if !s.guarded(func() { noted = s.takeAway(k, away, id) }) {
		return false, nil
	}
	file := s.file
	return true, dst.adoptKept(k, id, func() error {
		s.removeNote(note{file, noted})
		return nil
	})
}

// takeAway takes what leaves out of the stream into k, and notes in the stream's
// file that it is on its way.
func (s *stream) takeAway(k *keptStream, away *leaving, id [2]uint64) (noted *mapped.Extent) {
	for _, key := range away.dense {
		l := s.dense[key]
		k.Dense = append(k.Dense, keptDense{key, byte(l.Kind()), l.pulled, l.AppendResidual(nil), l.Age()})
		s.dropDense(key)
	}
	for layer, cells := range away.narrow {
		l := s.narrow[layer]
		n := keptNarrow{First: layer.First, Last: layer.Last, Kind: byte(layer.kind), Age: l.Age()}
		var at []uint32
		for _, c := range cells {
			n.Keys, n.Places, n.Widths = append(n.Keys, c.key), append(n.Places, uint32(len(at))+1), append(n.Widths, c.width)
			for i := range uint32(c.size()) {
				at = append(at, c.place-1+i)
			}
		}
		s.save(l.Layer, l.extent, at)
		n.Residual = l.TakeResidual(make([]byte, 0, len(at)*threshold.ResidualSize(l.Kind(), false)), at)
		k.Narrow = append(k.Narrow, n)
	}
	if s.file != nil {
		var text bytes.Buffer
		if err := gob.NewEncoder(&text).Encode(k); err != nil {
			panic(err) // into memory
		}
		b := text.Bytes()
		if noted = s.allocate(kindLeaves, mapped.Tag{A: id[0], B: id[1], C: crc32.Checksum(b, castagnoli)}, len(b)); noted != nil {
			copy(noted.Bytes(), b)
		}
	}
	s.commit()
	return noted
}

// Taken counts the streams that were taken up from proxies before this one.
func (c *Codec) Taken() uint64 { return c.taken.Load() }

// Sends reports whether pushes of our own are being made for a worker.
func (c *Codec) Sends(origin string, worker int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sends[process{origin, worker}] > 0
}

// sending notes that pushes of our own are made for processes, until the function
// is called that it returns.
func (c *Codec) sending(all []process) (over func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range all {
			if c.sends[p] += n; c.sends[p] == 0 {
				delete(c.sends, p)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// settleAgain is how often it is asked whether keys have arrived where they move.
const settleAgain = 5 * time.Millisecond

// settle waits until what waits in some streams is for the servers that have the
// keys, of which none is on its way to another. After [Codec.sending] it stays so.
func (c *Codec) settle(ctx context.Context, of map[owner]*stream) error {
	routes := map[process]relay.Routes{}
	for o, st := range of {
		st.mu.Lock()
		if st.sender != nil && st.sender.link.Routes != nil {
			routes[o.process()] = st.sender.link.Routes
		}
		st.mu.Unlock()
	}
	again := time.NewTicker(settleAgain)
	defer again.Stop()
	for p, r := range routes {
		for !r.Settled() {
			select {
			case <-again.C:
			case <-ctx.Done():
				c.counts.why(ReasonNoFlush)
				return fmt.Errorf("keys of worker %d are on their way between servers: %w", p.node, ctx.Err())
			}
		}
	}
	return nil
}

// processes returns whose streams these are, each once.
func processes(of map[owner]*stream) (all []process) {
	for o := range of {
		if p := o.process(); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
