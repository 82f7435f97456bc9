package route

import (
	"bytes"

	"github.com/psidecar/psidecar/proxy/pslite"
)

// verdicts are lists of keys that were asked for lately and of which none was
// displaced. A worker pushes to the keys that it has just pulled, and many use
// the same lists again and again: to compare a list takes a tenth of the time in
// which all its keys are looked up.
type verdicts struct {
	version uint64 // of the table
	lists   [8]pslite.Keys
	next    int
}

// Shorter lists are not worth it; longer ones are too large to be kept.
const (
	minVerdict = 8 * 64
	maxVerdict = 8 << 18
)

// has reports whether none of the keys is displaced, as was found before.
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

// rememberList notes that none of the keys is displaced.
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

// touches is [Table.Touches] with a cache of earlier key lists.
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
