package route

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A key in parts (see [plan.Parted]) is a single key to the worker: a request for it is split so
// that each server that has a part gets a request for the part's key, with the part's bytes of a
// pushed value; the parts of a pulled value are put together. Such requests have timestamps from
// FirstExact on, so that no codec changes values in parts or holds any of them back.
//
// The same request may have whole keys and keys in other numbers of parts. In a message without
// lengths all values must be equally long, so there is a layer of messages for each number of
// parts, with a timestamp of its own: layer 0 has the whole keys, the others follow. The content of
// one layer for one server is a share; among a split's owners, a share is the server's rank with
// the layer above it.

const (
	shareBits = 13 // low bits of a share: the rank; the layer is above them
	maxLayers = 8  // layers of one request, layer 0 included
)

// layersOf returns the distinct numbers of parts among the owners, ascending. The keys with the
// first one go in layer 1, and so on.
func layersOf(owners []int32) (parts []int) {
	last := int32(-1)
	for _, o := range owners {
		if p := plan.PartsOf(o); o != last && p > 0 && !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
		last = o
	}
	slices.Sort(parts)
	return parts
}

// anyParted reports whether any of the ascending, distinct owners means keys in parts: such owners
// are above all ranks.
func anyParted(distinct []int32) bool {
	return len(distinct) > 0 && plan.PartsOf(distinct[len(distinct)-1]) > 0
}

// Parts reports whether one of the keys is in parts. It is O(1) for jobs that have never had such
// keys.
func (t *Table) Parts(keys pslite.Keys) bool {
	return t.parted && slices.ContainsFunc(t.AppendOwners(nil, keys), func(o int32) bool { return plan.PartsOf(o) > 0 })
}

// Parted reports whether any key has ever been in parts.
func (t *Table) Parted() bool { return t.parted }

// shares returns the distinct shares of a request to a server, ascending. A key in parts must be
// asked of its home, as PS-lite does: the ranks of its parts are counted from there.
func shares(keys pslite.Keys, owners []int32, server int32, servers int) (all []int32, err error) {
	if !keys.Ordered() {
		return nil, fmt.Errorf("route: a request for keys in parts whose keys do not ascend")
	}
	layers := layersOf(owners)
	if len(layers) >= maxLayers {
		return nil, fmt.Errorf("route: a request for keys in %d different numbers of parts, at most %d are possible", len(layers), maxLayers-1)
	}
	add := func(share int32) {
		if i, found := slices.BinarySearch(all, share); !found {
			all = slices.Insert(all, i, share)
		}
	}
	for i, owner := range owners {
		parts := plan.PartsOf(owner)
		if parts == 0 {
			add(owner)
			continue
		}
		if home := plan.HomeOf(keys.At(i), servers); home != server {
			return nil, fmt.Errorf("route: key %d is in parts and at home with server %d, and server %d is asked for it", keys.At(i), home, server)
		}
		layer := int32(slices.Index(layers, parts)+1) << shareBits
		for part := range parts {
			add(layer | plan.PartRank(server, part, servers))
		}
	}
	return all, nil
}

// at returns the timestamp and the server of the message to the owner in place i.
func (s *split) at(i int) (own, rank int32) {
	if !s.parted {
		return s.own, s.owners[i]
	}
	return s.own + s.owners[i]>>shareBits, s.owners[i] & (1<<shareBits - 1)
}

// place is the inverse of at. It returns -1 where no such message was sent.
func (s *split) place(own, rank int32) int {
	if s.parted {
		rank |= (own - s.own) << shareBits
	}
	if i, found := slices.BinarySearch(s.owners, rank); found {
		return i
	}
	return -1
}

// layers returns the number of timestamps that the messages of a split have. A layer in between may
// be empty; its timestamp is reserved all the same.
func (s *split) layers() int32 {
	if !s.parted {
		return 1
	}
	return s.owners[len(s.owners)-1]>>shareBits + 1
}

// parts returns the number of parts of the keys in a share, 0 where they are whole. All servers
// that have a part of such a key have a share in the layer, so the shares are counted.
func (s *split) parts(share int32) (n int) {
	if share>>shareBits == 0 {
		return 0
	}
	for _, o := range s.owners {
		if o>>shareBits == share>>shareBits {
			n++
		}
	}
	return n
}

// nextExact reserves n consecutive exact timestamps, and returns the first. Where the ledger's
// counter starts over in between, it tries again.
func (w *worker) nextExact(n int32) int32 {
	for {
		first, i := w.ledger.Next(), int32(1)
		for i < n && w.ledger.Next() == first+i {
			i++
		}
		if i == n {
			return first + FirstExact - FirstOwn
		}
	}
}

// dispatchParted sends a request some of whose keys are in parts. It checks that the request can be
// cut before it opens it.
func (r *Router) dispatchParted(w *worker, s slice) error {
	s.split.parted = true
	s.split.own = w.nextExact(s.split.layers())
	if _, err := s.pieces(r.table.servers); err != nil {
		return err
	}
	w.addSplit(s.split)
	r.beginRequest(w, s.split.id, entry{split: s.split, flags: Parted})
	r.counts.Split++
	return r.sendShares(w, s)
}

// piece is the value of one key, or of one part of a key, in a message.
type piece struct {
	key   uint64
	value []byte // empty in a request that pulls
	size  int    // bytes of the value as lengths give them
}

// sendShares sends each share of a request to its server, except to those that have acknowledged
// theirs. Part keys are not in the order of the keys, so each share is sorted: servers expect
// ascending keys.
func (r *Router) sendShares(w *worker, s slice) error {
	bodies, err := s.pieces(r.table.servers)
	if err != nil {
		return err
	}
	m := s.message
	size := m.Values().Type.Size()
	for i, pieces := range bodies {
		if s.split.acked.has(i) {
			continue
		}
		slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.key, b.key) })
		var data part
		for _, p := range pieces {
			data[0] = binary.LittleEndian.AppendUint64(data[0], p.key)
			data[2] = binary.LittleEndian.AppendUint32(data[2], uint32(p.size/size))
		}
		data[1] = joinPieces(pieces)
		all := data[:2:2]
		if m.Lens() != nil {
			all = data[:3]
		}
		meta := m.Meta
		own, server := s.split.at(i)
		meta.Timestamp = own
		resize(&meta, m.Data, all)
		r.counts.Parts++
		r.send(w, server, frames(m, &meta, w.speaks, all))
	}
	return nil
}

// joinPieces concatenates the values of pieces.
func joinPieces(pieces []piece) []byte {
	values := make([][]byte, len(pieces))
	for i, p := range pieces {
		values[i] = p.value
	}
	return bytes.Join(values, nil)
}

// pieces returns the pieces of each share of a request, by place, in the order of the request's
// keys.
func (s *slice) pieces(servers int) (bodies [][]piece, err error) {
	values, err := piecesOf(s.message)
	if err != nil {
		return nil, err
	}
	layers := layersOf(s.owners)
	bodies = make([][]piece, len(s.split.owners))
	add := func(share int32, p piece) error {
		i, found := slices.BinarySearch(s.split.owners, share)
		if !found {
			return fmt.Errorf("route: key %d of an in-flight request has moved", p.key)
		}
		bodies[i] = append(bodies[i], p)
		return nil
	}
	for i, owner := range s.owners {
		v, parts := values[i], plan.PartsOf(owner)
		if parts == 0 {
			if err := add(owner, v); err != nil {
				return nil, err
			}
			continue
		}
		layer := int32(slices.Index(layers, parts)+1) << shareBits
		for n := range parts {
			p, err := v.cut(n, parts, servers)
			if err == nil {
				err = add(layer|plan.PartRank(s.split.id.server, n, servers), p)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return bodies, nil
}

// cut returns one of the parts of a piece. A value shorter than 8 bytes per part cannot be divided.
func (p *piece) cut(part, parts, servers int) (piece, error) {
	key, ok := plan.PartKey(p.key, part, parts, servers)
	if !ok || p.size > 0 && p.size < 8*parts {
		return piece{}, fmt.Errorf("route: %d bytes of key %d cannot be in %d parts", p.size, p.key, parts)
	}
	from, to := plan.PartBytes(p.size, part, parts)
	cut := piece{key: key, size: to - from}
	if len(p.value) > 0 {
		cut.value = p.value[from:to]
	}
	return cut, nil
}

// piecesOf takes the data of a message apart, by key. Values refer to the message's memory. Keys,
// lengths and values have to agree to the byte.
func piecesOf(m *pslite.Message) ([]piece, error) {
	keys, lens, left := m.Keys(), m.Lens(), m.Data[1]
	n := keys.Len()
	if n == 0 || lens == nil && len(left)%n != 0 || lens != nil && lens.Len() != n {
		return nil, fmt.Errorf("route: a message of %d keys, %d lengths and %d bytes of values", n, lens.Len(), len(left))
	}
	each, asks := len(left)/n, len(left) == 0
	pieces := make([]piece, n)
	for i := range pieces {
		p := piece{key: keys.At(i), size: each}
		if lens != nil {
			p.size = int(lens.At(i)) * m.Values().Type.Size()
		}
		if !asks {
			if p.size < 0 || p.size > len(left) {
				return nil, fmt.Errorf("route: want %d bytes of values of key %d, got %d", p.size, p.key, len(left))
			}
			p.value, left = left[:p.size:p.size], left[p.size:]
		}
		pieces[i] = p
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("route: %d bytes of values belong to no key", len(left))
	}
	return pieces, nil
}

// assembleShares merges the answers to the shares of a request. It collects the pieces of each key
// in the order of the parts, and requires all of them.
func (s *split) assembleShares(d pslite.Dialect, servers int) ([][]byte, error) {
	seen := 0
	for s.unseen.has(seen) {
		seen++
	}
	first := &s.answers[seen]
	meta := first.Meta
	meta.Timestamp = s.id.timestamp
	if len(first.Data) == 0 {
		return frames(first, &meta, d, nil), nil
	}
	wholes := map[uint64][]piece{} // by the job's keys, in order of the parts
	for i := range s.answers {
		if a := &s.answers[i]; len(a.Data) != len(first.Data) || len(a.Data) < 2 {
			return nil, fmt.Errorf("route: a server answers with %d data frames, another with %d", len(a.Data), len(first.Data))
		}
		if err := s.takeShare(i, wholes, servers); err != nil {
			return nil, err
		}
	}
	data := make([][]byte, len(first.Data))
	size, width := first.Values().Type.Size(), -1
	var all []piece
	for _, key := range slices.Sorted(maps.Keys(wholes)) {
		bytes := 0
		for _, p := range wholes[key] {
			if p.size < 0 {
				return nil, fmt.Errorf("route: a part of key %d was not answered", key)
			}
			bytes += p.size
		}
		if width >= 0 && bytes != width && len(data) < 3 {
			return nil, fmt.Errorf("route: servers answer with %d bytes of key %d, with %d of others", bytes, key, width)
		}
		width = bytes
		data[0] = binary.LittleEndian.AppendUint64(data[0], key)
		if len(data) > 2 {
			data[2] = binary.LittleEndian.AppendUint32(data[2], uint32(bytes/size))
		}
		all = append(all, wholes[key]...)
	}
	data[1] = joinPieces(all)
	resize(&meta, first.Data, data)
	return frames(first, &meta, d, data), nil
}

// takeShare adds the pieces of the answer in place i to the keys that they belong to. The server's
// distance from the home, in ranks, is the part that it has.
func (s *split) takeShare(i int, wholes map[uint64][]piece, servers int) error {
	pieces, err := piecesOf(&s.answers[i])
	if err != nil {
		return err
	}
	_, rank := s.at(i)
	parts := s.parts(s.owners[i])
	part := (int(rank-s.id.server) + servers) % servers
	for _, p := range pieces {
		if parts == 0 {
			wholes[p.key] = []piece{p}
			continue
		}
		key := plan.WholeKey(p.key, s.id.server, part, parts, servers)
		if len(wholes[key]) != parts {
			wholes[key] = make([]piece, parts)
			for n := range wholes[key] {
				wholes[key][n].size = -1
			}
		}
		wholes[key][part] = p
	}
	return nil
}
