package jobs

import (
	"slices"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A worker that ends leaves requests in flight, in a job without PS_RESEND for good: a move of
// their keys would wait for them forever. So they are abandoned (see route/abandon.go) when
//   - the worker itself ends the connection to a server, which it does when it exits or is killed. A
//     connection that this proxy or the far side ends, and one that goes on over another link, says
//     nothing: the worker lives, and the server's answer takes another connection;
//   - another process has taken the worker's place, as the node table of a recovery tells.
//
// What the old process sent may still be on its way to a server. So after requests were abandoned
// nothing moves before all connections are back and have settled ([settleFor]). The same holds for
// what a move has pushed over a connection that has ended, whoever ended it.

// flight is a worker's connection to a server, from when it joins the job until it is closed.
type flight struct {
	pair     pair
	replaced bool   // a later connection serves the pair
	last     uint32 // if so: the generation of the last requests before that one
}

// beginFlight notes that a worker's connection to a server joins. A worker that reconnects makes
// its new connection before this proxy has seen the end of the old one, and what is sent on the new
// one does not end with the old one.
func (x *job) beginFlight(c *requests, p pair) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.flights[c] != nil || !c.open() {
		return // or it would never leave
	}
	for _, f := range x.flights {
		if f.pair == p && !f.replaced {
			f.replaced, f.last = true, x.router.NextGeneration()
		}
	}
	x.flights[c] = &flight{pair: p}
}

// endFlight abandons the requests on a connection that is closed, if the worker has ended it, and the
// pushes of moves in any case; the caller holds x.mu.
func (x *job) endFlight(c *requests) {
	f := x.flights[c]
	if f == nil {
		return
	}
	delete(x.flights, c)
	if x.site == nil || x.gone {
		return
	}
	if x.site.Disconnect(f.pair.worker, f.pair.server) {
		x.router.SetCarried(false)
		x.unsettle()
		x.carry()
	}
	if !c.hungUp.Load() {
		return
	}
	last := f.last
	if !f.replaced {
		last = x.router.NextGeneration()
	}
	// Before the requests are closed, which may make holds quiet.
	x.router.SetCarried(false)
	if n := x.router.AbandonConnection(f.pair.worker, f.pair.server, last); n > 0 {
		x.unsettle()
		x.jobs.log.Info("a worker ended its connection to a server, and its requests in flight are abandoned", "job", x.name, "worker", f.pair.worker, "server", pslite.ServerID(int(f.pair.server)), "requests", n)
	}
	x.carry()
}

// abandonReplaced abandons the requests of this host's workers that a recovery's table has at
// another address, and forgets nodes that it has on another host. It is called before the table is learned, whichever node it is on its way to:
// afterwards connections of servers to the new process join, and would bring it what is for the old
// one. The new process's own table may come later. The caller holds jobs.mu.
func (x *job) abandonReplaced(t *pslite.Table) {
	for _, n := range t.Nodes() {
		role, _, ok := pslite.Rank(n.ID)
		all := x.nodes.Nodes()
		at := slices.IndexFunc(all, func(o pslite.Node) bool { return o.ID == n.ID })
		if !ok || !n.IsRecovery || at < 0 || !x.isLocal(n.ID) || all[at].Hostname == n.Hostname && all[at].Port == n.Port {
			continue
		}
		if role == pslite.Worker {
			x.abandonWorker(n.ID, true)
		}
		if siteName(all[at]) != siteName(n) {
			x.removeLocal(n.ID)
		}
	}
}

// removeLocal notes that a node's place was taken by a process on another host. A process here that
// has it again says so by its own table.
func (x *job) removeLocal(id int32) {
	x.locked(func() error {
		delete(x.local, id)
		if n := x.router.RemoveWorker(id); n > 0 {
			x.unsettle()
		}
		x.jobs.log.Info("a node was restarted on another host", "job", x.name, "node", id)
		return nil
	})
}

// abandonWorker abandons all requests of a worker that another process has replaced, and drops the
// messages that wait for connections of the old one. The new process has not made any yet: it
// learns where the servers are from the table that tells of it. But servers may have connected to
// it, unless all connections are those of the old one.
func (x *job) abandonWorker(id int32, all bool) {
	x.locked(func() error {
		if x.router.Resend() {
			return nil
		}
		for p, c := range x.down {
			if all && p.worker == id {
				x.lost += uint64(len(c.retire()))
				delete(x.down, p)
			}
		}
		for p, c := range x.up {
			if p.worker == id {
				x.lose(lostRestarted, uint64(len(c.retire())))
				delete(x.up, p)
			}
		}
		// A connection of a server to the worker may be one to the new process already, and stays.
		for p, c := range x.down {
			if p.worker == id {
				x.lose(lostRestarted, c.discard())
			}
		}
		for _, pending := range []map[pair][][]byte{x.pendingUp, x.pendingDown} {
			for p, messages := range pending {
				if p.worker == id {
					x.lose(lostRestarted, uint64(len(messages)))
					delete(pending, p)
				}
			}
		}
		x.router.SetCarried(false)
		if n := x.router.AbandonWorker(id); n > 0 {
			x.unsettle()
			x.jobs.log.Info("a worker was restarted, and the requests of the process before it are abandoned", "job", x.name, "worker", id, "requests", n)
		}
		return nil
	})
}

// unsettle has nothing move until all connections are there and have settled; the caller holds
// x.mu.
func (x *job) unsettle() { x.abandoned, x.settled, x.backSince = true, false, time.Time{} }

// settles reports whether the job's connections have yet to settle; the caller holds x.mu.
func (x *job) settles() bool { return (x.resumed || x.abandoned) && !x.settled }

// recovered reports whether a table has a node as one that came back.
func recovered(t *pslite.Table, id int32) bool {
	return slices.ContainsFunc(t.Nodes(), func(n pslite.Node) bool { return n.ID == id && n.IsRecovery })
}
