package migrate

import "slices"

// sweep takes away what is on its way between hosts and servers and will change
// nothing when it arrives, whenever that is: worlds that differ in nothing else are
// one. Nobody looks at it, whatever comes before it in its queue, and what could be
// lost with it is nothing.
func (m *model) sweep(n *world) {
	if !m.resend {
		return // nothing comes twice
	}
	for s := range uint8(2) {
		for i := range uint8(2) {
			n.Up[s][i] = m.without(n.Up[s][i], func(x uint32) bool { return m.idle(n, s, i, x, true) })
			n.Down[s][i] = m.without(n.Down[s][i], func(x uint32) bool { return m.idle(n, s, i, x, false) })
		}
	}
}

// without returns a queue without some of its messages.
func (p *parts) without(q uint32, gone func(message uint32) bool) uint32 {
	all := p.queues[q].parts
	if !slices.ContainsFunc(all, gone) {
		return q
	}
	left := uint32(0)
	for _, x := range all {
		if !gone(x) {
			left = p.push(left, x)
		}
	}
	return left
}

// idle reports whether a message from host i to server s, or back, changes nothing
// any more. That is so of an ACK for which its receiver does not wait: it has sent
// what is acknowledged, once, before the ACK was, and forgotten it. And of a message
// that its receiver has seen, which will only be acknowledged once more, where the
// sender does not wait for that. Neither ever changes again: what was seen stays so,
// a killed site's host keeps it, and what is on its way ends with a site.
func (m *model) idle(n *world, s, i uint8, message uint32, up bool) bool {
	k := turnKey{part: n.Servers[s], what: message, do: serves, at: s}
	if !up {
		if !m.all[n.Hosts[i]].facts.alive {
			return false
		}
		k = turnKey{part: n.Hosts[i], what: message, do: takes, at: i, server: s, own: n.Own[i], number: n.Batches[i]}
	}
	o := m.turn(k)
	if o.part != k.part || o.failure != "" || len(o.effects) > 1 {
		return false
	}
	if len(o.effects) == 0 {
		return m.all[message].ack
	}
	back := o.effects[0]
	return back.kind == aMessage && m.all[back.number].ack && (up || back.to == s) && m.idle(n, s, i, back.number, !up)
}
