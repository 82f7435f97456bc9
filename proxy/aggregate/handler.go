package aggregate

import "time"

// handler is what a server does with pushes of an app and a command.
type handler struct{ app, head int32 }

func (s *subject) handler() handler { return handler{s.app, s.head} }

// maxHandlers bounds those of a server that are remembered.
const maxHandlers = 256

// Methods of group are called with mu locked.

// waitsBeside returns a push of another worker that waits and is the next to go over its connection, of whose
// pair f holds; nil: there is none.
func (g *group) waitsBeside(it *item, f func(*pair) bool) *item {
	for q := range g.queues {
		if len(q.items) > 0 && q.pair != it.queue.pair && f(q.pair) {
			return q.items[0]
		}
	}
	return nil
}

// mayGo reports whether a push may be the next one. If it is not known that the handler answers pushes one by
// one, and pushes of others wait, it goes alone, beside one of these. It must be of a worker all of whose pushes
// are answered: none of them can be what a server that answers pushes together has waited for. While there is no
// such worker, all pushes that could change that are held here. Others may have joined a push before the
// server's connection broke: then it is a sum.
func (g *group) mayGo(it *item, now time.Time) (beside *item, ok bool) {
	b := it.batch
	if !g.tested[b.handler()] && g.off == "" && len(b.items) == 1 && b.given == 0 {
		beside = g.waitsBeside(it, func(p *pair) bool { return len(p.pending) == 0 })
		switch {
		case beside != nil, g.waitsBeside(it, func(*pair) bool { return true }) == nil:
		case g.wanting.IsZero():
			g.wanting = now
			return nil, false
		case now.Sub(g.wanting) < g.opts.AnswerWithin:
			return nil, false
		default:
			g.off = Sums
		}
	}
	g.wanting = time.Time{}
	return beside, true
}

// wasAlone notes the end of the wait for the push that went alone. answered says that the server has answered
// it, over a connection over which an ACK of it would have come before: PS-lite acknowledges a message before
// it handles it. That does not hold where an ACK may have been lost with another connection.
func (g *group) wasAlone(answered bool) {
	h, q := g.alone.handler(), g.beside.queue
	waits := len(q.items) > 0 && q.items[0] == g.beside && len(q.pair.pending) == 0
	g.alone, g.beside = nil, nil
	if answered && waits && !g.resends.Load() {
		if len(g.tested) >= maxHandlers {
			clear(g.tested)
		}
		g.tested[h] = true
	}
	for _, b := range g.open {
		b.isRipe = true
	}
}
