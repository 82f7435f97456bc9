package jobs

import (
	"errors"
	"slices"

	"github.com/psidecar/psidecar/proxy/route"
)

// staysFor returns the reason, as it is called in reports, why keys stay where they are because of how the job uses them;
// empty: err is not about that.
func staysFor(err error) string {
	switch {
	case errors.Is(err, route.ErrApps):
		return "apps"
	case errors.Is(err, route.ErrSlicer):
		return "slicer"
	case errors.Is(err, route.ErrCommands):
		return "commands"
	}
	return ""
}

// stay refuses the keys of a group that never move, and goes on with the others; the caller holds x.mu.
func (x *job) stay(w *work, err error) {
	x.stays = err
	keys := w.keys
	if some := (*route.StayError)(nil); errors.As(err, &some) {
		keys = some.Keys
	}
	x.refuseSome(w, keys, staysFor(err), err.Error())
}

// refuseSome refuses some keys of a group, and goes on with the others unless their plan was
// canceled meanwhile; the caller holds x.mu.
func (x *job) refuseSome(w *work, keys []uint64, label, message string) {
	if p := x.batches[w.plan]; w.plan != 0 && (p == nil || p.pending == 0) {
		return
	}
	x.refuse(&work{plan: w.plan, keys: keys}, label, message, len(keys))
	left := slices.DeleteFunc(slices.Clone(w.keys), func(key uint64) bool { return slices.Contains(keys, key) })
	if len(left) > 0 {
		x.work = append(x.work, &work{plan: w.plan, from: w.from, to: w.to, keys: left, tries: w.tries, round: w.round})
	}
}

// unfit returns why keys of the job stay where they are because of how it uses them, and nil where there is no such
// reason, as far as is known here; the caller holds x.mu.
func (x *job) unfit() error {
	if err := x.router.Unfit(); err != nil {
		return err
	}
	return x.stays
}

// keepUses has the next proxy know how the workers of this host use keys; the caller holds x.mu.
func (x *job) keepUses() {
	if x.savedUses == x.router.UsesVersion() || x.jobs.plans == nil {
		return
	}
	x.savedUses = x.router.UsesVersion()
	if err := x.save(); err != nil {
		x.jobs.log.Error("cannot save how a job uses its keys: no key will move after a restart of this proxy before that is seen again", "job", x.name, "error", err)
	}
}
