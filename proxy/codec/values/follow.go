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

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/mapped"
	"github.com/psidecar/psidecar/proxy/codec/threshold"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A key's residual is meant for the server that owns the key. When another server
// becomes the owner, the residual moves to the stream of the worker's pushes to that
// server. Both streams may have files, and no transaction covers two files, so the
// move takes three steps:
//
//   1. In one transaction it leaves the first file, in which a note keeps it as
//     in transit (kindLeaves).
//   2. In another it arrives in the second file, in which its id is noted
//     (kindTook).
//   3. Then both notes are removed.
//
// A kill between the steps leaves it in the first file, in transit, or in both, and
// then the second file says so: the next proxy counts it once.

// process is a process of this host, by where it connects from and its node id.
type process struct {
	origin string
	node   int32
}

// process returns the process that an owner's pushes come from.
func (o *owner) process() process {
	id, ok := pslite.ParseIdentity([]byte(o.node))
	if !ok {
		id = pslite.Empty
	}
	return process{o.origin, id}
}

// Follow moves the residuals of a worker's pushes of keys in these ascending ranges,
// of all keys if keys is nil, to the streams of the servers that own the keys.
// servers are the job's by rank, and owner returns the rank that has a key now;
// streams to other servers stay as they are. No push of a key that has a new owner
// may be in flight to the old one: its residual would arrive too late.
func (c *Codec) Follow(origin string, worker int32, servers []netip.AddrPort, keys []plan.Keys, owner func(key uint64) int32) {
	// One at a time: moveTo holds two streams' locks, and only one caller may do that.
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
			// Only keys that have moved: of the others a push may be on its way to
			// the server that they belong to.
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

// WaitsOf reports whether anything waits of a worker's pushes of keys in these
// ascending ranges.
func (c *Codec) WaitsOf(origin string, worker int32, keys []plan.Keys) bool {
	for _, st := range c.streamsOfProcess(process{origin, worker}) {
		if st.waitsOf(keys) {
			return true
		}
	}
	return false
}

// waitsOf is WaitsOf for one stream. It reads the numbers of the layers in question.
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

// moveAway moves residuals of a stream to others; leaves returns the server that a
// key's residual belongs to, and false if it stays.
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
			c.log.Error("cannot move a worker's residuals along with its keys", "worker", o.node, "from", o.server, "to", at, "error", err)
		}
		c.leave(dst)
		if !ok {
			return
		}
	}
}

// leaving is what of a stream is for one other server: dense layers as a whole, cells
// of narrow layers.
type leaving struct {
	dense  []uint64
	narrow map[layerID][]cell
}

// leaving returns, by server, the waiting values that belong to it. The caller holds
// s.mu.
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
			// Keys of which nothing waits stay where they are: their places cost
			// memory, but nothing is lost.
			if at, ok := leaves(c.key); ok && l.holds(&c) {
				to(at).narrow[id] = append(to(at).narrow[id], c)
			}
		}
	}
	return all
}

// holds reports whether anything of a key waits.
func (l *narrowLayer) holds(c *cell) bool { return l.Holds(int(c.place)-1, int(c.place)-1+c.size()) }

// moveTo moves what leaves the stream to another one of the same worker. The caller
// holds s.mu. With ok false the stream's file was damaged and all that waited in it is
// lost, which was logged.
func (s *stream) moveTo(dst *stream, to owner, away *leaving) (ok bool, err error) {
	k := &keptStream{Origin: to.origin, Node: to.node, Server: to.server, App: to.app, Customer: to.customer, Command: s.commands.whose()}
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

// takeAway takes what leaves out of the stream into k, and notes in the stream's file
// that it is on its way, in one transaction. Without a file nothing is noted, and a
// kill loses it, as it loses all that waits in memory alone.
func (s *stream) takeAway(k *keptStream, away *leaving, id [2]uint64) (noted *mapped.Extent) {
	for _, key := range away.dense {
		l := s.dense[key]
		k.Dense = append(k.Dense, keptDense{key, byte(l.Kind()), l.AppendResidual(nil), l.Age()})
		s.dropDense(key)
	}
	for layer, cells := range away.narrow {
		l := s.narrow[layer]
		n := keptNarrow{First: layer.First, Last: layer.Last, Kind: byte(layer.kind), Age: l.Age()}
		var at []uint32
		for _, c := range cells {
			// The moved layer is compact: its keys get new places, one behind the
			// other.
			n.Keys, n.Places, n.Widths = append(n.Keys, c.key), append(n.Places, uint32(len(at))+1), append(n.Widths, c.width)
			for i := range uint32(c.size()) {
				at = append(at, c.place-1+i)
			}
		}
		s.save(l.Layer, l.extent, at)
		n.Residual = l.TakeResidual(make([]byte, 0, len(at)*threshold.ResidualSize(l.Kind())), at)
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

// Taken returns how many streams were taken over from proxies before this one.
func (c *Codec) Taken() uint64 { return c.taken.Load() }

// Sends reports whether own pushes are being made for a worker: its keys must not move
// then.
func (c *Codec) Sends(origin string, worker int32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sends[process{origin, worker}] > 0
}

// sending records that own pushes are being made for processes, until the function that
// it returns is called.
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

// settleAgain is how often it is checked whether keys that move have arrived.
const settleAgain = 5 * time.Millisecond

// settle blocks until the residuals in some streams are for the servers that own the
// keys, and no key is on its way to another. After [Codec.sending] it stays like
// that.
func (c *Codec) settle(ctx context.Context, of map[owner]*stream) error {
	routes := map[process]relay.Routes{}
	for o, st := range of {
		st.mu.Lock()
		// Only processes whose requests are routed can have keys that move.
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

// processes returns the processes of these streams, each once.
func processes(of map[owner]*stream) (all []process) {
	for o := range of {
		if p := o.process(); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
