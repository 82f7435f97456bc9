package route

import (
	"errors"
	"math"
	"slices"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A key has a value for each app, and may have one for each command (PS-lite's cmd, [pslite.Meta.Head]): servers keep
// tables apart by it. So the router notes how the workers of this host use which keys ([Use]), and asks for a key as they
// do. Before keys move, the mover hears of the uses on all hosts.

// Use is a kind of request that workers make: pushes, pulls, or both, of one app under one command.
type Use struct {
	App, Head  int32
	Push, Pull bool
	Type       pslite.DataType // of values
	Lens       bool            // some requests have lengths
	// Strays means that a request was for a key which is not at home with the server asked: the program distributes keys
	// by a slicer of its own.
	Strays bool
	Most   int // keys in a request
	// Width is the number of bytes of each pushed value, [Varies] where they differ or are not known, 0 before the first
	// push without lengths.
	Width int
	// Keys are those that may have been used so, ascending. There can be others among them: see cover.
	Keys []plan.Keys
}

// Varies is the width of values that are not all equally long, as far as is known.
const Varies = -1

// The reasons why keys do not move, besides [ErrNoTemplate] and [ErrApps].
var (
	// ErrSlicer means that the owner of a key is not known from its home.
	ErrSlicer = errors.New("the program distributes keys among servers by a slicer of its own")
	// ErrCommands means that it is not known which table a key's value is in.
	ErrCommands = errors.New("workers use the key under several commands (cmd), or under one that is not known: each may have a table of its own")
)

const (
	// mostUses bounds the uses that are noted. Of a job with more of them no key moves.
	mostUses = 32
	// eachKey is the number of keys up to which each key of a request is noted, rather than all between the first and
	// the last.
	eachKey = 64
)

// use is a use on this host, with a request as template for the router's own. It is nil for one that only a router before
// this one has seen.
type use struct {
	Use
	like *pslite.Meta
}

func (u *Use) same(o *Use) bool {
	return u.App == o.App && u.Head == o.Head && u.Push == o.Push && u.Pull == o.Pull
}

// addUse makes u cover the requests of o, too.
func (u *Use) addUse(o *Use) {
	u.Lens, u.Strays, u.Most = u.Lens || o.Lens, u.Strays || o.Strays, max(u.Most, o.Most)
	switch {
	case u.Width == 0:
		u.Width = o.Width
	case o.Width != 0 && o.Width != u.Width:
		u.Width = Varies
	}
	for _, k := range o.Keys {
		u.Keys = cover(u.Keys, k)
	}
}

// MergeUses adds the uses of another host to those of some, whose memory becomes the result's.
func MergeUses(all, more []Use) []Use {
	for i := range more {
		at := slices.IndexFunc(all, func(u Use) bool { return u.same(&more[i]) })
		if at < 0 {
			at = len(all)
			all = append(all, more[i])
			all[at].Keys = nil
		}
		all[at].addUse(&more[i])
	}
	return all
}

// noteUse notes a request to a server. bytes is the size of its values, negative where it is not known.
func (r *Router) noteUse(server int32, m *pslite.Meta, keys pslite.Keys, bytes int) {
	u, n := r.useOf(m), keys.Len()
	if u == nil || n == 0 {
		return
	}
	u.Most = max(u.Most, n)
	lens, strays, width := u.Lens, u.Strays, u.Width
	u.Strays = strays || !atHome(keys, server, r.table.servers)
	switch {
	case len(m.DataTypes) > 2:
		u.Lens = true
	case !m.Push:
	case bytes < 0 || bytes%n != 0 || width != 0 && width != bytes/n:
		u.Width = Varies
	default:
		u.Width = bytes / n
	}
	if u.Lens != lens || u.Strays != strays || u.Width != width {
		r.usesVersion++
	}
	first, last := keys.At(0), keys.At(n-1)
	switch {
	case covers(u.Keys, plan.Keys{First: first, Last: last}):
	case n > eachKey:
		u.Keys = cover(u.Keys, plan.Keys{First: first, Last: last})
	default:
		for i := range n {
			u.Keys = cover(u.Keys, plan.One(keys.At(i)))
		}
	}
}

// useOf returns the use that a request is of, and nil where there are too many.
func (r *Router) useOf(m *pslite.Meta) *use {
	for _, u := range r.uses {
		if u.App == m.AppID && u.Head == m.Head && u.Push == m.Push && u.Pull == m.Pull {
			if u.like == nil {
				u.like = template(m)
			}
			return u
		}
	}
	if len(r.uses) == mostUses {
		r.manyUses = true
		return nil
	}
	u := &use{Use: Use{App: m.AppID, Head: m.Head, Push: m.Push, Pull: m.Pull}, like: template(m)}
	if len(m.DataTypes) > 1 {
		u.Type = m.DataTypes[1]
	}
	r.uses = append(r.uses, u)
	r.usesVersion++
	return u
}

func template(m *pslite.Meta) *pslite.Meta {
	c := m.Clone()
	return &c
}

// Uses returns how the workers of this host use keys, of which each use lists those that it may have had.
func (r *Router) Uses(keys []plan.Keys) []Use {
	all := make([]Use, len(r.uses))
	for i, u := range r.uses {
		all[i] = u.Use
		all[i].Keys = nil
		for _, k := range keys {
			all[i].Keys = append(all[i].Keys, within(u.Keys, k)...)
		}
	}
	return all
}

// KnownUses returns the uses without their keys, for the caller to keep when UsesVersion has changed; see TakeUses.
func (r *Router) KnownUses() []Use {
	all := make([]Use, len(r.uses))
	for i, u := range r.uses {
		all[i] = u.Use
		all[i].Keys = nil
	}
	return all
}

// UsesVersion changes with anything that is known of uses but keys and their numbers.
func (r *Router) UsesVersion() int { return r.usesVersion }

// TakeUses takes over what a router before this one knew: each use may have been of any key.
func (r *Router) TakeUses(all []Use) {
	for i := range all {
		u := all[i]
		u.Keys = []plan.Keys{{Last: math.MaxUint64}}
		r.uses = append(r.uses, &use{Use: u})
	}
}

// Fits returns nil where keys may move whose uses these are, of all hosts of the job, and otherwise why not.
func Fits(all []Use) error {
	switch {
	case slices.ContainsFunc(all, func(u Use) bool { return u.Strays }):
		return ErrSlicer
	case slices.ContainsFunc(all, func(u Use) bool { return u.App != all[0].App }):
		return ErrApps
	case len(all) > mostUses:
		return ErrCommands
	}
	return nil
}
