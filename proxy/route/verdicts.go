package route

import (
	"bytes"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// verdicts caches key lists that were looked up lately and have no displaced key. A worker pushes
// to the keys that it has just pulled, and many workers use the same lists again and again;
// comparing a list takes a tenth of the time of looking up its keys. The lists are copies, at most
// 8 of maxVerdict bytes.
type verdicts struct {
	version uint64 // of the table
	lists   [8]pslite.Keys
	next    int
}

// Shorter lists are not worth it; longer ones are too large to be kept.
const (
	// Bytes of a list. Shorter ones are not worth a comparison, longer ones too large to keep.
	minVerdict = 8 * 64
	maxVerdict = 8 << 18
)

// has reports whether it is known that none of the keys is displaced.
func (v *verdicts) has(keys pslite.Keys, version uint64) bool {
	if len(keys) < minVerdict || v.version != version {
		return false
	}
	for _, l := range v.lists {
		if len(l) == len(keys) && l.At(0) == keys.At(0) && bytes.Equal(l, keys) {
			return true
		}
	}
	return false
}

// rememberList notes that none of the keys is displaced, in the place of the oldest list.
func (v *verdicts) rememberList(keys pslite.Keys, version uint64) {
	if len(keys) < minVerdict || len(keys) > maxVerdict {
		return
	}
	if v.version != version {
		*v = verdicts{version: version}
	}
	v.lists[v.next] = append(v.lists[v.next][:0], keys...)
	v.next = (v.next + 1) % len(v.lists)
}

// touches is [Table.Touches] behind the cache of verdicts.
func (r *Router) touches(keys pslite.Keys) bool {
	switch {
	case r.table.Empty():
		return false
	case r.verdicts.has(keys, r.table.version):
		return false
	case r.table.Touches(keys):
		return true
	}
	r.verdicts.rememberList(keys, r.table.version)
	return false
}

// ownerLists caches the owners of key lists that were looked up lately. A worker pushes to the keys
// that it has just pulled. The lists are copies, at most 16 of minVerdict to maxOwned bytes.
type ownerLists struct {
	version uint64 // of the table
	lists   [16]owned
	next    int
	runs    []run // memory of [Router.sendParts], at most mostRuns
}

// owned is a list of keys and their owners. An entry that was handed out is not changed.
type owned struct {
	keys     pslite.Keys
	owners   []int32 // in the order of keys
	distinct []int32 // ascending
}

// maxOwned bounds the bytes of a list that is kept.
const maxOwned = 8 << 15

// mostRuns bounds the runs whose memory is kept, so that one large request does not occupy it for the
// life of the job.
const mostRuns = 1 << 16

// keepRuns keeps the memory of runs for the next request.
func (o *ownerLists) keepRuns(all []run) {
	if o.runs = all; cap(all) > mostRuns {
		o.runs = nil
	}
}

// of returns the owner of each key by the table, and the distinct owners, ascending. The slices must
// not be changed.
func (o *ownerLists) of(t *Table, keys pslite.Keys) (all, distinct []int32) {
	if len(keys) < minVerdict || len(keys) > maxOwned {
		all = t.AppendOwners(nil, keys)
		return all, ranks(all)
	}
	if o.version != t.version {
		*o = ownerLists{version: t.version, runs: o.runs}
	}
	for i := range o.lists {
		if l := &o.lists[i]; len(l.keys) == len(keys) && l.keys.At(0) == keys.At(0) && bytes.Equal(l.keys, keys) {
			return l.owners, l.distinct
		}
	}
	all = t.AppendOwners(nil, keys)
	distinct = ranks(all)
	l := &o.lists[o.next]
	*l = owned{append(l.keys[:0], keys...), all, distinct}
	o.next = (o.next + 1) % len(o.lists)
	return all, distinct
}
