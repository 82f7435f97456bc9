package observe

import (
	"encoding/binary"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// A message is the state of a stream's message in progress, from its meta frame to its last
// record. The zero value means that none is.
type message struct {
	open     bool
	data     bool // a data request or answer between a worker and a server that are known
	fresh    bool // not a retransmission or duplicate: it changes counts
	answer   bool
	sampled  bool // the kernel copies its keys
	withLens bool // a lens frame follows the values
	job      *Job
	exchange counts.Request // identifies the request that it is, or that it answers
	each     counts.Sums    // what is added for each key: accesses, by kind
	weight   uint64         // number of requests that this one stands for
	dataSize uint64         // bytes of all data frames, as its meta says; 0: unknown
	keyBytes uint64         // length of the key frame
	flushed  uint64         // keys that were counted before the end of the message
	perKey   uint64         // bytes a key that those were counted with
}

// A Use is one use of keys by a worker, as passed to Options.Uses. Slices are valid during the
// call only.
type Use struct {
	Job            *Job
	Worker, Server *Node
	Request        counts.Request
	Answer         bool
	Keys           []uint64 // valid during the call
	Bytes          uint64   // of the values for these keys
	Lens           []int32  // elements for each key; nil if all keys have the same number of bytes
	OneIn          uint32   // number of requests that it stands for
}

// metaRecord handles a record of a meta frame, which is whole or a piece. Pieces are joined by
// offset; after a gap the message is given up. A meta that cannot be parsed does not end the
// stream, since the next one may be whole.
func (o *Observer) metaRecord(s *stream, r *bpf.Record) {
	// The end of the message before was lost.
	if r.Offset == 0 && s.message.open {
		o.giveUp(s)
	}
	frame := r.Data
	if !r.Has(bpf.EndsFrame) || r.Offset > 0 {
		if uint64(len(s.metaBuf)) != r.Offset {
			o.giveUp(s)
			return
		}
		s.metaBuf = append(s.metaBuf, r.Data...)
		if !r.Has(bpf.EndsFrame) {
			return
		}
		frame = s.metaBuf
	}
	if _, err := s.detector.Decode(frame, &o.meta); err != nil {
		if !s.timing && !s.ofFork(err) {
			o.misses.BadMetas++
		}
		s.metaBuf = s.metaBuf[:0]
		return
	}
	s.synced, s.spoke = true, true
	if s.timing {
		o.time(s, r, &o.meta)
		s.metaBuf = s.metaBuf[:0]
		return
	}
	o.beginMessage(s, r, &o.meta)
	s.metaBuf = s.metaBuf[:0]
	if r.Has(bpf.EndsMessage) {
		// A message that consists of a meta alone has no KindEnd record. Its size includes the
		// ZMTP frame header.
		const header = 2
		o.finish(s, r, r.Length+header, [4]uint64{r.Length})
	}
}

// time handles the meta of a received message on a timing stream. An answer to a request of
// this host ends the request's wait. What the scheduler says about nodes is learned too, since
// it may be on another host. A message that this agent also sees where it is sent (a twin) says
// nothing new.
func (o *Observer) time(s *stream, r *bpf.Record, m *pslite.Meta) {
	at := o.opts.Wall(r.Time)
	o.markTwin(s)
	if s.twin {
		return
	}
	o.readControl(s, m, at)
	o.place(s, at)
	// An answer travels from the server to the worker.
	worker, server := s.receiver, s.sender
	if m.Request || m.Control.Cmd != pslite.NoCommand {
		return
	}
	if worker == nil || server == nil || worker.job != server.job || worker.role != roleWorker || server.role != roleServer {
		s.skipped = true
		return
	}
	answer := counts.Request{
		Worker: worker.index, Server: server.index, Time: at,
		App: m.AppID, Customer: m.CustomerID, Timestamp: m.Timestamp, Push: m.Push, Pull: m.Pull,
	}
	s.giveUpBefore(worker.job, answer)
	answer.AnyServer = s.bytePS()
	worker.job.Sums.Timed(answer)
}

// bytePS reports whether the stream's messages are in BytePS's dialect.
func (s *stream) bytePS() bool {
	d, _ := s.detector.Dialect()
	return d == pslite.BytePSRaw
}

// giveUpBefore gives up waiting for requests older than the one answered now, after messages
// passed unread on this stream: one of those may have been their answer, and they would wait
// for ever.
func (s *stream) giveUpBefore(j *Job, answer counts.Request) {
	if s.skipped {
		s.skipped = false
		j.Sums.GiveUpBefore(answer)
	}
}

// beginMessage starts a message whose meta frame is complete. It decides what is counted at the
// end: only data messages between a placed worker and a placed server, in their job, and only
// where they are sent.
func (o *Observer) beginMessage(s *stream, r *bpf.Record, m *pslite.Meta) {
	at := o.opts.Wall(r.Time)
	o.readControl(s, m, at)
	o.place(s, at)
	s.message = message{open: true, sampled: r.Has(bpf.Sampled)}
	msg := &s.message
	// Neither end is known. The message counts as unplaced when it ends.
	if msg.job = s.job(); msg.job == nil {
		s.skipped = true
		return
	}
	msg.job.noteActivity(at, &s.detector)
	o.lookForParts(msg.job, at)
	msg.exchange = counts.Request{
		Time: at, App: m.AppID, Customer: m.CustomerID, Timestamp: m.Timestamp, Push: m.Push, Pull: m.Pull,
		Bytes: uint64(max(m.DataSize, 0)),
	}
	worker, server := s.sender, s.receiver
	if msg.answer = !m.Request; msg.answer {
		worker, server = server, worker
	}
	if m.Control.Cmd != pslite.NoCommand || worker == nil || server == nil ||
		worker.role != roleWorker || server.role != roleServer {
		// An answer that cannot be placed may be the one that a request waits for.
		s.skipped = s.skipped || m.Data()
		return
	}
	msg.data = true
	msg.exchange.Worker, msg.exchange.Server = worker.index, server.index
	if s.twin {
		return
	}
	// Sums match requests with answers and recognize retransmissions.
	if msg.answer {
		s.giveUpBefore(msg.job, msg.exchange)
		msg.exchange.AnyServer = s.bytePS()
		msg.fresh = msg.job.Sums.Answer(msg.exchange)
	} else {
		msg.fresh = msg.job.Sums.Ask(msg.exchange)
	}
	// A request of a meta alone, such as a pull of a command without keys, is never sampled.
	withKeys := !r.Has(bpf.EndsMessage)
	msg.weight = 1
	of := o.standsFor(s, at)
	if withKeys {
		msg.weight = msg.job.sampled(r, of)
	}
	if !msg.answer {
		msg.job.looked.asked(m, at)
	}
	if !msg.answer && withKeys {
		msg.job.looked.weighed(msg.sampled, msg.weight, of)
	}
	if !msg.answer && m.Push {
		msg.each[counts.Pushes] = msg.weight
	}
	if !msg.answer && m.Pull {
		msg.each[counts.Pulls] = msg.weight
	}
	msg.withLens = len(m.DataTypes) > 2
	msg.dataSize = uint64(max(m.DataSize, 0))
}

// keysRecord handles a record of a key frame: bytes or a run. Keys are held until the message
// ends, because the lens and the size of the values are known only then. If too many are held,
// in this message or over all streams, they are counted at once with an equal share of the
// bytes.
func (o *Observer) keysRecord(s *stream, r *bpf.Record) {
	msg := &s.message
	if msg.open && msg.job != nil {
		msg.job.looked.copied(r, msg.weight)
	}
	if !msg.open || !msg.data || !msg.fresh || s.twin {
		return
	}
	msg.keyBytes = r.Length
	o.hold(s, r)
	full := s.list.memory() >= 8*heldKeys && !msg.withLens || o.held > heldBytes
	if !full {
		return
	}
	// The size of the values is not known yet. The data size in the meta, less the key frame,
	// is their size if there is no lens frame.
	if msg.withLens || msg.dataSize < msg.keyBytes || msg.keyBytes < 8 {
		msg.perKey = 0
	} else {
		msg.perKey = (msg.dataSize - msg.keyBytes) / (msg.keyBytes / 8)
	}
	o.use(s, msg.perKey, nil, 0)
	msg.flushed += uint64(s.list.len())
	// The partial key is kept outside of the accounting; it is at most seven bytes.
	o.held -= s.list.memory()
	// A key that is cut in two continues in the next record.
	split, have := s.list.split, s.list.have
	s.list.reset()
	s.list.split, s.list.have = split, have
}

// lensRecord takes in a piece of a lens frame, of a message whose keys are counted.
func (o *Observer) lensRecord(s *stream, r *bpf.Record) {
	if msg := &s.message; !msg.open || !msg.data || !msg.fresh || s.twin {
		return
	}
	s.lens = append(s.lens, r.Data...)
	o.held += len(r.Data)
}

// endMessage handles the record that ends a message. It has the sizes of the frames.
func (o *Observer) endMessage(s *stream, r *bpf.Record) {
	if !s.message.open {
		return
	}
	frames := r.FrameBytes()
	if r.Has(bpf.Incomplete) {
		o.misses.Incomplete++
		// Part of it was lost on the way to the ring buffer. It counts as traffic, not as a
		// use.
		s.message.fresh = false
	}
	o.finish(s, r, r.Offset, frames)
}

// finish counts a message and resets the stream's state. size is that of the whole message on
// the wire, frames are the lengths of its first four frames: meta, keys, values, lens.
func (o *Observer) finish(s *stream, r *bpf.Record, size uint64, frames [4]uint64) {
	msg := &s.message
	defer func() {
		o.freeMessage(s)
		s.message = message{}
	}()
	at := o.opts.Wall(r.Time)
	// This agent sees both ends. The egress stream counts the message.
	if s.twin {
		return
	}
	leftHost := s.leavesHost()
	switch {
	case msg.job == nil:
		o.misses.Unplaced++
		o.misses.UnplacedBytes += size
		return
	// Control messages, and those whose ends are not both known, count as traffic of the job.
	case !msg.data:
		msg.job.Sums.Other(at, size, leftHost)
		if s.sender == nil || s.receiver == nil {
			o.misses.Unplaced++
			o.misses.UnplacedBytes += size
		}
		return
	}
	request := msg.exchange
	request.Time = at
	msg.job.Sums.Moved(request, !msg.answer, size, leftHost, !msg.fresh)
	if msg.fresh && !msg.answer {
		if keyed := s.list.len() > 0 && msg.flushed == 0; keyed {
			// Flushed keys are gone from the list, whose ends would then be those of the rest.
			first, last := s.list.ends()
			msg.job.Sums.Describe(msg.exchange, size, true, first, last)
		} else {
			msg.job.Sums.Describe(msg.exchange, size, false, 0, 0)
		}
	}
	if msg.fresh && msg.keyBytes > 0 {
		o.finishKeys(s, frames)
	}
}

// finishKeys counts the held keys with the bytes of their values: by lens if the message has
// them and they fit, else in equal shares. Bytes that cannot be attributed are counted as
// misses.
func (o *Observer) finishKeys(s *stream, frames [4]uint64) {
	msg := &s.message
	keys, values := frames[1]/8, frames[2]
	if keys == 0 {
		return
	}
	if msg.flushed+uint64(s.list.len()) != keys {
		o.misses.Incomplete++ // not all keys were copied
	}
	if msg.withLens && len(s.lens) > 0 && msg.flushed == 0 {
		if unit := lensUnit(s.lens, s.list.len(), values); unit > 0 || values == 0 {
			o.use(s, 0, s.lens, unit)
			return
		}
	}
	perKey := values / keys
	if extra := values - perKey*keys; extra > 0 {
		o.misses.Unattributed += extra
	}
	// Keys that were flushed early were counted with a share that turned out wrong.
	if msg.flushed > 0 && msg.perKey != perKey {
		o.misses.Unattributed += max(perKey, msg.perKey) * msg.flushed
	}
	o.use(s, perKey, nil, 0)
}

// lensUnit returns the size in bytes of one element: lens count elements, whose size the
// message does not state. It is 0 if the lens do not fit the number of keys or the length of
// the values.
func lensUnit(lens []byte, keys int, values uint64) uint64 {
	if len(lens) != 4*keys {
		return 0
	}
	sum := uint64(0)
	for i := 0; i < len(lens); i += 4 {
		sum += uint64(max(int32(binary.LittleEndian.Uint32(lens[i:])), 0))
	}
	if sum == 0 || values%sum != 0 {
		return 0
	}
	return values / sum
}

// use counts the keys held for the message in progress, each with perKey bytes or with lens
// times unit. Counts and bytes are scaled by the message's weight. An access counts at the
// request; bytes count where the values travel, pushed ones at the request and pulled ones at
// the answer.
func (o *Observer) use(s *stream, perKey uint64, lens []byte, unit uint64) {
	msg := &s.message
	if s.list.len() == 0 {
		return
	}
	plane := counts.PushedBytes
	if msg.answer {
		plane = counts.PulledBytes
		o.learnParts(msg.job)
		held := s.list.memory()
		msg.job.parts.makeWhole(&s.list)
		o.held += s.list.memory() - held
	}
	bytes := perKey * uint64(s.list.len())
	b := counts.Batch{Worker: msg.exchange.Worker, Each: msg.each}
	if lens == nil {
		b.Each[plane] += perKey * msg.weight
	} else {
		bytes = o.readLens(lens, unit)
		if unit > 0 {
			b.Lens, b.LenUnit, b.LenPlane = o.lens, unit*msg.weight, plane
		}
	}
	keys := s.list.keys
	for _, p := range s.list.pieces {
		b.Run, b.Keys, b.Ascending = p.run, nil, p.rising
		if p.run.N == 0 {
			b.Keys, keys = keys[:p.n], keys[p.n:]
		}
		msg.job.Sums.Use(msg.exchange.Time, b)
	}
	if !msg.answer {
		// A server's rank shows in the keys that it is asked for.
		s.receiver.asked(s.list.ends())
	}
	if o.opts.Uses != nil {
		o.reportKeys(s, bytes, lens != nil)
	}
}

// readLens decodes lens into o.lens, a buffer that is valid until the next call, and returns
// the number of bytes that they stand for. Negative lens count as 0.
func (o *Observer) readLens(lens []byte, unit uint64) (bytes uint64) {
	o.lens = o.lens[:0]
	for i := 0; i+4 <= len(lens); i += 4 {
		n := int32(binary.LittleEndian.Uint32(lens[i:]))
		o.lens = append(o.lens, n)
		bytes += uint64(max(n, 0)) * unit
	}
	return bytes
}

// reportKeys passes the held keys to Options.Uses. None of them is in a run, since hold expands
// runs when Uses is set.
func (o *Observer) reportKeys(s *stream, bytes uint64, withLens bool) {
	msg := &s.message
	use := Use{Job: msg.job, Worker: s.sender, Server: s.receiver, Request: msg.exchange, Answer: msg.answer, Keys: s.list.keys, Bytes: bytes, OneIn: uint32(msg.weight)}
	if msg.answer {
		use.Worker, use.Server = use.Server, use.Worker
	}
	if !use.Worker.Ranked() || !use.Server.Ranked() {
		msg.job.rankByAddress() // names given out now are final where they can be
	}
	if withLens {
		use.Lens = o.lens
	}
	o.opts.Uses(use)
}
