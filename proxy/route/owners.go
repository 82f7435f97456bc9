package route

import (
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// MoveApp says whose keys move: those of the first app for which it is called, other than [pslite.Empty]. Keys of all other apps stay where they
// have been from the start, since nobody moves their values.
func (r *Router) MoveApp(app int32) {
	if r.app == pslite.Empty {
		r.app = app
	}
}

// App returns the app whose keys move, [pslite.Empty] where none do.
func (r *Router) App() int32 { return r.app }

// AppOf returns the app of the requests of this host's workers; of several it is any.
func (r *Router) AppOf() int32 {
	for _, u := range r.uses {
		return u.App
	}
	return pslite.Empty
}

// OneApp reports whether all requests of this host's workers are of one app.
func (r *Router) OneApp() bool {
	return !slices.ContainsFunc(r.uses, func(u *use) bool { return u.App != r.uses[0].App })
}

// tableOf returns where the keys of an app are.
func (r *Router) tableOf(app int32) *Table {
	if r.app != pslite.Empty && app != r.app {
		return r.placed
	}
	return r.table
}

// displaces reports whether one of the ascending keys of an app may be displaced.
func (r *Router) displaces(app int32, keys pslite.Keys) bool {
	if t := r.tableOf(app); t != r.table {
		return t.Touches(keys)
	}
	return r.touches(keys)
}

// ownersOf returns the owner of each key of a request to a server, and the distinct owners, ascending. The slices must
// not be changed.
//
// A key asked of another server than its home, as by a program with a slicer of its own, is that server's, wherever the
// table has the key: it is another one than that which was asked of the home.
func (r *Router) ownersOf(server int32, m *pslite.Meta, keys pslite.Keys) (all, distinct []int32) {
	if t := r.tableOf(m.AppID); t == r.table {
		all, distinct = r.owners.of(t, keys)
	} else {
		all = t.AppendOwners(nil, keys)
		distinct = ranks(all)
	}
	if keys.Len() == 0 || atHome(keys.Sorted(), server, r.table.servers) {
		return all, distinct
	}
	all = slices.Clone(all)
	for i := range all {
		if plan.HomeOf(keys.At(i), r.table.servers) != server {
			all[i] = server
		}
	}
	return all, ranks(all)
}

// parted reports whether one of a request's keys is in parts.
func (r *Router) parted(m *pslite.Meta, keys pslite.Keys) bool {
	return r.tableOf(m.AppID).Parts(keys)
}
