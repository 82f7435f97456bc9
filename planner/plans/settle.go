package plans

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/store"
)

// A write that fails may have reached the disk in part or as a whole. Of owners it is what counts: the
// proxies have moved the keys, and settle adopts it. Of plans and commands it does not count, since who
// asked was told that it failed: write undoes it before anything else.

// settle reads back what a failed write has left of the owners, if there was one: the write may
// have reached the disk and only its answer been lost. The run then has what a planner that starts
// now would find. Before that no owner is served, no plan is made and no record is refused. The
// caller holds j.mu.
func (j *job) settle(ctx context.Context) error {
	if !j.unsure {
		return nil
	}
	s := newSaved()
	err := j.service.store.Each(ctx, func(name string, value []byte) error {
		if k, rest, ok := cutName(name); ok && k == j.key() {
			return s.readEntry(rest, value)
		}
		return nil
	})
	found := newJob(j.service, j.key(), j.servers)
	if err == nil && s.head.Format != 0 {
		err = found.readOwners(s)
	}
	if err != nil {
		return status.Errorf(codes.Unavailable, "job %s: what is recorded cannot be read back after a failed write: %v", j.name, err)
	}
	news, ok := found.recent.since(j.version, j.mark)
	if !ok && found.version != j.version {
		for _, e := range found.pieces() {
			news = append(news, newTold(e))
		}
	}
	j.owners, j.version, j.mark, j.recent = found.owners, found.version, found.mark, found.recent
	j.snapshot, j.snapParts, j.snapMark, j.logged = found.snapshot, found.snapParts, found.snapMark, found.logged
	j.unsure = false
	for _, e := range news {
		if j.lost == nil {
			j.service.sendToAll(e)
		}
	}
	return nil
}

// write writes entries of the run, after what a write that failed may have left undone or half done.
func (j *job) write(ctx context.Context, entries []store.Entry) error {
	if j.torn {
		entries = append(j.repair(), entries...)
	}
	if len(entries) == 0 {
		return nil
	}
	err := j.service.writeEntries(ctx, entries)
	j.torn = err != nil
	return err
}

// repair returns the epochs and the head as they are in memory, or are to be. An epoch that is not
// there is removed first: it would otherwise be carried out by a planner that starts, although who
// asked for it was told that it failed.
func (j *job) repair() []store.Entry {
	entries := []store.Entry{{Name: j.epochName(j.lastEpoch() + 1)}}
	for _, e := range j.epochs {
		entries = append(entries, store.Entry{Name: j.epochName(e.info.GetEpoch()), Value: e.kept})
	}
	return append(entries, j.headEntry(j.held))
}
