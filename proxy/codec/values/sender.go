package values

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/unchanged"
	"github.com/psidecar/psidecar/proxy/relay"
)

// A Sender encodes the messages of one direction of a link. It is not safe for
// concurrent use, except for Abort, queue and what flushes read of it (resends, link,
// id): those are called by other goroutines.
//
// For each message it follows changed rules, cuts the values into pieces by them, lets
// each piece go by the codec of its rule, and leaves keys, meta and everything else to
// package compact. State of pushes is in streams, which outlive the link; state of
// answers is in rounds, last, keyed and copies, which end with it.
type Sender struct {
	client
	compact *compact.Sender
	message *pslite.Message // that is shown
	dialect pslite.Dialect  // of message

	job     string   // where it is known
	asked   uint64   // codec.named when job and place were looked up
	rules   *ruleSet // the rules that spans were compiled from
	titled  uint64   // version of codec.titles when title was looked up
	title   policy.JobTitle
	spans   []span
	layout  layout
	streams map[[2]int32]*stream // by app and customer
	fresh   map[*stream]bool     // streams that no push of this link has used yet
	pushing pushing
	fit     *fit // of job
	rounds  rounds
	last    *unchanged.Sender
	keyed   byKey
	lately  lately
	copies  copies
	active  activating
	halves  []byte      // values of 16 bits
	theirs  offer       // the receiver's offer: what it can read
	resend  atomic.Bool // the process uses PS_RESEND
	// sameHost: the link ends where it begins, and crosses no network.
	sameHost bool
	place    place               // as of asked
	tells    bool                // a rule holds for gradients alone
	initials map[int32]*initials // by app; empty until tells
	ownMu    sync.Mutex          // guards own; all else is the sending goroutine's
	own      [][][]byte          // own messages to be sent, as frames
	close    func()
}

// newSender makes the Sender of a link's end. It joins no stream yet: the messages
// show which ones it needs.
func newSender(c *Codec, l relay.Link, cs *compact.Sender, theirs offer) *Sender {
	s := &Sender{client: client{codec: c, link: l}, compact: cs, message: new(pslite.Message), streams: map[[2]int32]*stream{}, fresh: map[*stream]bool{}, initials: map[int32]*initials{}}
	if l.Wake == nil {
		s.link.Wake = func() {}
	}
	s.rounds = newRounds(pullBytes)
	s.keyed = newByKey(keyBytes)
	s.theirs = theirs
	s.copies = newCopies(c, min(c.pullLimit(), int(theirs.Pulls)))
	s.last = unchanged.NewSender(unchanged.Limits{Bytes: pullBytes, Answers: unchanged.DefaultLimits.Answers})
	s.job, s.fit = l.Job, c.fits.of(l.Job)
	s.titled = ^uint64(0) // none is known yet
	s.sameHost = l.Client.IsValid() && (l.Dialer == l.Acceptor || l.Client.Addr().Unmap() == l.Destination.Addr().Unmap())
	if s.sameHost {
		s.place = withinHost
	}
	if l.Dialed {
		s.member = c.joinOrigin(l.Origin, !s.sameHost)
		s.member.names(l.Job)
	}
	// Streams stay with the codec when the link ends: the worker reconnects, or its end
	// is seen elsewhere.
	s.close = sync.OnceFunc(func() {
		cs.Close()
		if s.member != nil {
			s.member.leave()
		}
		s.copies.close()
		for _, in := range s.initials {
			in.close()
		}
		for _, st := range s.streams {
			st.mu.Lock()
			if st.sender == s {
				st.sender = nil
			}
			st.mu.Unlock()
			c.leave(st)
		}
	})
	return s
}

// Close implements [relay.Sender].
func (s *Sender) Close() { s.close() }

// Hold implements [relay.Holder]: messages are wanted whole if a rule applies to their
// values.
func (s *Sender) Hold(shown *relay.Message) bool {
	if len(shown.Frames) < 2 {
		return false
	}
	m, _, err := shown.Decode()
	if err != nil && len(m.Data) != 1 {
		return false
	}
	if m.Meta.Control.Cmd != pslite.NoCommand || m.Meta.SimpleApp {
		return false
	}
	s.follow()
	if s.link.Dialed && !m.Meta.Request && m.Meta.Pull {
		s.noteMoves(m)
		s.copies.hold(m)
	}
	switch {
	case s.codec.watcher.Load() != nil,
		m.Meta.Request && m.Meta.Push && (s.wantsPush() || s.owes(m)),
		!m.Meta.Request && m.Meta.Pull && (s.wantsPull() || s.recalls()):
		return true
	}
	return s.compact.Hold(shown)
}

// Elsewhere implements [relay.Sharer].
func (s *Sender) Elsewhere() (lane, spared int) { return s.compact.Elsewhere() }

// MayWait implements [relay.Sharer].
func (s *Sender) MayWait(bytes int) bool { return s.compact.MayWait(bytes) }

// Abort implements [relay.Aborter].
func (s *Sender) Abort() { s.compact.Abort() }

// follow takes up changed rules, and the job's address and name once they are known. It
// is called for each message, so it compares versions and pointers before it looks
// anything up.
func (s *Sender) follow() {
	job, at := s.job, s.place
	if asked := s.codec.named.Load(); asked != s.asked {
		s.asked = asked
		if s.link.Job == "" {
			job = s.codec.jobOf(s.link.Origin)
		}
		if s.sameHost && s.codec.leavesHost(s.link.Origin) {
			at = amongHosts
		}
	}
	title := s.title
	if asked := s.codec.titles.Version(); s.link.Dialed && (asked != s.titled || job != s.job) {
		s.titled = asked
		title = s.codec.titles.Of(s.link.Origin, job)
	}
	if now := s.codec.rules.Load(); now != s.rules || job != s.job || title != s.title || at != s.place {
		s.rules, s.job, s.title, s.fit, s.place = now, job, title, s.codec.fits.of(job), at
		s.spans = compile(now.with(title), job, title.Name, at)
		s.tells = s.tellsGradients()
		s.copies.forget() // what went in another way meanwhile is not in them
	}
}

// wantsPush reports whether a rule of this link does anything to pushes.
func (s *Sender) wantsPush() bool {
	for i := range s.spans {
		if r := s.spans[i].rule; r != nil && r.pushes() {
			return true
		}
	}
	return false
}

// wantsPull reports whether a rule of this link does anything to answers of pulls.
func (s *Sender) wantsPull() bool {
	for i := range s.spans {
		if r := s.spans[i].rule; r != nil && r.pulls() {
			return true
		}
	}
	return false
}

// recalls reports whether answers leave out what their worker has, although no rule asks
// for that: a threshold leaves most parameters as they are. If several processes of the
// other host are answered, they share their values instead, see package compact.
func (s *Sender) recalls() bool {
	return slices.ContainsFunc(s.spans, func(p span) bool { return p.rule != nil && p.rule.Threshold > 0 }) &&
		!s.compact.AnswersSeveral() && (s.link.Pays == nil || s.link.Pays())
}

// pushes reports whether the rule does anything to pushes; pulls likewise, for
// answers of pulls.
func (r *Rule) pushes() bool {
	return r.keeps() || r.Quantize > 0 || r.Slim != nil || r.Wire != ""
}
func (r *Rule) thresholds() bool { return r.Threshold > 0 }
func (r *Rule) pulls() bool {
	return r.Unchanged || r.Slim != nil || r.feedsBack() || r.activates() || r.Wire != ""
}

// owes reports whether anything of the pushes to this server waits, or whether the
// request is to be repeated as it was, although no rule asks for that any more.
func (s *Sender) owes(m *pslite.Message) bool {
	st, _ := s.stream(m, false)
	return st != nil && st.owes(exchangeOf(&m.Meta))
}

// Encode implements [relay.Sender]. Only the dialing end codes values: a node sends
// everything, answers included, over connections that it made.
func (s *Sender) Encode(dst []byte, shown *relay.Message) (head []byte, plain uint32, ok bool) {
	s.follow()
	m, dialect, err := shown.Decode()
	s.message, s.dialect = m, dialect
	if err == nil && s.link.Dialed {
		if see := s.codec.watcher.Load(); see != nil && !shown.Rest && s.known {
			(*see)(s.job, s.link.Origin+" "+s.node+" "+s.link.Destination.String(), s.id, shown.Frames)
		}
		if head, ok = s.appendAnswer(dst, m); ok {
			s.alters()
			return head, 0, true
		}
		s.watch(m)
	}
	// A pull is recorded after all messages encoded before it, and before its answer
	// can come.
	pulls := err == nil && s.link.Dialed && m.Meta.Data() && m.Meta.Request && m.Meta.Pull
	answers := (err == nil || len(m.Data) == 1) && s.link.Dialed && m.Meta.Data() && !m.Meta.Request && m.Meta.Pull
	s.copies.release(m, answers)
	if answers {
		s.noteMoves(m)
	}
	if m := s.coded(shown); m != nil {
		if m.Meta.Request || s.wantsPull() {
			s.alters()
		}
		if head, plain, ok = s.encode(dst, shown, m); ok {
			if pulls {
				s.notePull(m)
			}
			return head, plain, true
		}
	}
	if pulls {
		s.notePull(m)
		if mode := s.ask(m); mode != modeCompact {
			if head, plain, ok = s.compact.EncodeAny(dst, shown); ok {
				return append(head, mode), plain, true
			}
		}
	}
	if answers {
		s.copies.drop(m.Keys()) // the worker gets values that are not in them
	}
	head, plain, ok = s.compact.Encode(dst, shown)
	if !ok {
		return dst, 0, false
	}
	return append(head, modeCompact), plain, true
}

// alters reports that messages of the process no longer arrive as they were sent.
// From then on a connection whose link breaks cannot be continued on another link:
// decoded messages depended on state that ended with the link.
func (s *Sender) alters() {
	if s.link.Altered != nil {
		s.link.Altered()
	}
}

// watch learns from control messages, also whether the process uses PS_RESEND: only
// then does it send ACKs.
func (s *Sender) watch(m *pslite.Message) {
	if m.Meta.Control.Cmd == pslite.Ack {
		s.resend.Store(true)
	}
	s.learn(&m.Meta)
}

// resends reports whether the process uses PS_RESEND.
func (s *Sender) resends() bool { return s.resend.Load() }

// coded returns the message if its values may be coded, after reading its layout; nil
// otherwise.
func (s *Sender) coded(shown *relay.Message) *pslite.Message {
	if !s.link.Dialed {
		return nil // a node's messages all go over connections that it made
	}
	m, _, err := shown.Decode()
	if err != nil || !m.Meta.Data() || isOwn(m.Meta.Timestamp) {
		return nil // the proxies' own pushes and pulls are exact
	}
	isPush := m.Meta.Request && m.Meta.Push
	switch {
	case isPush && (s.wantsPush() || s.owes(m)):
	case !m.Meta.Request && m.Meta.Pull && (s.wantsPull() || s.recalls()):
	default:
		return nil
	}
	// The relay had no memory to hold it. Its keys' state is as before, as if the
	// message had not been.
	if shown.Rest {
		s.codec.counts.why(ReasonLarge)
		if isPush {
			s.noteWhole(ReasonLarge)
		}
		return nil
	}
	if r := s.layout.readShape(m, s.spans); r != "" {
		s.codec.counts.why(r)
		if isPush {
			s.noteWhole(r)
		}
		return nil
	}
	// What is known of a key serves one push of it at a time.
	if isPush && !m.Keys().Ascend() {
		s.codec.counts.why(ReasonShape)
		s.noteWhole(ReasonShape)
		return nil
	}
	if s.layout.any((*Rule).activates) && !s.activate(m) {
		return nil
	}
	return m
}

// activate reports whether anything may be done to a message of keys with rules for
// activations. Package compact gets more out of messages whose values stay as they are.
func (s *Sender) activate(m *pslite.Message) bool {
	if m.Meta.Request {
		return s.layout.any(func(r *Rule) bool { return r.pushes() && (!r.activates() || r.otherwise() || r.ActivationsPushed) }) || s.owes(m) || s.masks(m)
	}
	if s.active.granted = s.codec.permits.grants(askingOf(s.link.Acceptor, m)); s.active.granted {
		return true
	}
	s.codec.counts.why(ReasonUnasked)
	return s.layout.any(func(r *Rule) bool { return r.pulls() && (!r.activates() || r.Wire != "") })
}

// otherwise reports whether the rule changes pushes in any other way.
func (r *Rule) otherwise() bool { return r.Quantize > 0 || r.Wire != "" }

// DropsPushes reports whether a rule leaves values out of pushes for good, or depending
// on what the worker itself has pulled. Such pushes must not be summed with other
// workers' before they are coded.
func (s *Sender) DropsPushes() bool {
	s.follow()
	for i := range s.spans {
		if r := s.spans[i].rule; r != nil && (r.Slim != nil || r.activates()) {
			return true
		}
	}
	return false
}

// masks reports whether there are masks for pushes to this server. If there are none it
// records the push, so that the pairing goes on.
func (s *Sender) masks(m *pslite.Message) bool {
	st, why := s.stream(m, true)
	if st == nil {
		s.codec.counts.why(why)
		return false
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.pairs.masks() {
		return true
	}
	st.pairs.push(m.Meta.Timestamp, m.Keys())
	s.codec.counts.why(ReasonUnmasked)
	return false
}

// onlyRounds reports whether rules do nothing to a message except send its values in 16
// bits.
func (s *Sender) onlyRounds(m *pslite.Message) bool {
	if !s.layout.any(func(r *Rule) bool { return r.Wire != "" }) {
		return false
	}
	if m.Meta.Request {
		return !s.layout.any(func(r *Rule) bool { return r.keeps() || r.Quantize > 0 || r.Slim != nil }) && !s.owes(m)
	}
	return !s.layout.any(func(r *Rule) bool { return r.Unchanged || r.Slim != nil || r.feedsBack() || r.activates() })
}

// encode encodes a message whose values may be coded. With ok false nothing has
// happened; otherwise the state has moved on and the head must be sent.
func (s *Sender) encode(dst []byte, shown *relay.Message, m *pslite.Message) (head []byte, plain uint32, ok bool) {
	head, plain, ok = s.compact.EncodeAny(dst, shown)
	if !ok {
		return dst, 0, false
	}
	start, at, coded := len(dst), len(head), false
	// Values that compact packs to less than half go without loss, and in fewer bytes
	// than rounded ones.
	if s.onlyRounds(m) { // fewer bytes without rounding are better
		if head, ok = s.compact.PackValues(head, start, shown, len(m.Data[1])/2); ok {
			return append(head, modeCompact), 0, true
		}
	}
	s.rounds.whose = [2]int32{m.Meta.AppID, m.Meta.CustomerID}
	if m.Meta.Request {
		head, coded = s.appendPush(head, shown, m)
	} else {
		head, coded = s.appendPull(head, m)
	}
	if !coded {
		if head, ok = s.compact.PackValues(head, start, shown, len(m.Data[1])); ok {
			return append(head, modeCompact), 0, true
		}
		return append(head, modeCompact), plain, true
	}
	head = binary.LittleEndian.AppendUint32(head, uint32(len(head)-at))
	return append(head, modeSection), 0, true
}
