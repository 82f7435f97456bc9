package jobs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/proxy/spare"
)

// A job with fewer servers than hosts gets spare servers (Options.Spare): the proxy of each host that
// has workers and no server holds parts of large values, in a file of the job's folder. The router
// knows them by ranks above the servers'. Its messages for them go over links between proxies, one
// for each host and spare server (package spare), and not over the workers' connections: PS-lite
// knows nothing of them.
//
// Which hosts those are follows from the node table of the run's beginning, which all proxies have
// alike. It is kept in job.json, since a recovery may change addresses. The owner of a key in parts
// says how many spare servers there are, and a link says which; where two proxies differ, keys stay
// whole, or the link is refused.
//
// Both ends of a link survive a kill of the other: the client repeats what was not answered, and the
// server recognizes what it has applied. What a proxy that ends in order had in flight, the next one
// sends again, from unfinished.json. After a kill of a worker's proxy its workers repeat it, with
// PS_RESEND.

// maxSpare bounds the spare servers of a job. An owner has room for no more; see package plan.
const maxSpare = 1<<10 - 1

// spares are a job's spare servers. job.mu guards it.
//
// Invariants: hosts, traffic and served do not change once the job is registered. clients is nil or has one element for
// each host. asked has the requests that a client was given and has not answered.
type spares struct {
	hosts   []string         // by rank, from the number of servers on
	traffic []*spare.Traffic // with each of them, as their client
	served  *spare.Traffic   // of the links to this host's spare server
	clients []*spare.Client
	asked   map[spareID]spareAsk
	end     context.CancelFunc // ends clients; nil: they do not run
	server  *spare.Server      // of this host; nil: nobody has asked for it
	links   int                // that server serves
	unused  time.Time          // since when the job is over here and links is 0; zero: it is not so
}

// mostSpareBytes is what may be on its way to all spare servers of a job before its workers have to wait;
// for one of them it is mostQueuedBytes.
const mostSpareBytes = 4 * mostQueuedBytes

// spareID identifies a request to a spare server, of the rank server.
type spareID struct {
	pair
	timestamp int32
}

// spareAsk is a request to a spare server without an answer.
type spareAsk struct {
	meta    pslite.Meta
	dialect pslite.Dialect
	raw     []byte // the whole message, for the next proxy
}

// spareHosts returns the hosts of a node table that have workers and no server, ascending, at most
// maxSpare. It returns none where a host has a name instead of an address, since its proxy could not
// be reached.
func spareHosts(t *pslite.Table) (hosts []string) {
	serves := map[string]bool{}
	for _, n := range t.Nodes() {
		role, _, ok := pslite.Rank(n.ID)
		if ok && role == pslite.Server {
			serves[siteName(n)] = true
		}
	}
	for _, n := range t.Nodes() {
		role, _, ok := pslite.Rank(n.ID)
		if !ok || role != pslite.Worker || serves[siteName(n)] {
			continue
		}
		if _, err := netip.ParseAddr(siteName(n)); err != nil {
			return nil
		}
		hosts = append(hosts, siteName(n))
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	return hosts[:min(len(hosts), maxSpare)]
}

// setSpare sets the hosts of the job's spare servers, before it is registered.
func (x *job) setSpare(hosts []string) {
	x.spares.hosts = hosts
	x.spares.served = spare.NewTraffic(&x.jobs.spareServed)
	x.spares.traffic = nil
	for range hosts {
		x.spares.traffic = append(x.spares.traffic, spare.NewTraffic(&x.jobs.spareAsked))
	}
	x.router.SetSpare(len(hosts))
}

// places returns where parts of the job's keys can be.
func (x *job) places() plan.Places {
	return plan.Places{Servers: x.servers, Spare: len(x.spares.hosts)}
}

// misplaces reports whether a message is about keys that go into parts at places that this host does
// not know, and then answers a Hold at once, so that its mover gives up; the caller holds x.mu.
func (x *job) misplaces(m *migrate.Message) bool {
	if m.Kind != migrate.Hold && m.Kind != migrate.Release || m.Owner < plan.FirstParted || x.places().Owns(m.Owner) {
		return false
	}
	if m.Kind == migrate.Hold {
		x.sendSite(m.Batch.Mover, &migrate.Message{Kind: migrate.Quiet, Batch: m.Batch, Keys: m.Keys, Owner: migrate.Elsewhere})
	}
	return true
}

// checkOwners has the job's requests refused, and returns why, where the planner's table has keys in
// parts at places that this host does not know; the caller holds x.mu.
func (x *job) checkOwners(t *route.Table) error {
	if !t.Parted() || x.failed != nil {
		return nil
	}
	t.All(func(r plan.Range) bool {
		if r.Owner >= plan.FirstParted && !x.places().Owns(r.Owner) {
			x.failed = reason.Errorf(reason.State, "job %s: key %d is in parts among other spare servers than the %d that this host knows: run the proxies of all hosts with --spare-servers, and restart the job", x.name, r.First, len(x.spares.hosts))
			x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
		}
		return x.failed == nil
	})
	return x.failed
}

// startSpares starts the clients of the spare servers, unless they run; the caller holds x.mu. They
// run from when a part may be there.
func (x *job) startSpares() {
	if x.spares.end != nil || len(x.spares.hosts) == 0 || x.run == "" || x.gone {
		return
	}
	if x.spares.clients == nil {
		x.spares.asked = map[spareID]spareAsk{}
		for i := range x.spares.hosts {
			x.spares.clients = append(x.spares.clients, x.newSpareClient(i))
		}
	}
	clients := x.spares.clients
	mine, end := context.WithCancel(context.Background())
	started := x.jobs.start(func(ctx context.Context) {
		defer context.AfterFunc(ctx, end)()
		runSpares(mine, clients)
	})
	if started {
		x.spares.end = end
	} else {
		end()
	}
}

// spareKept is how long values of a spare server are kept that nobody is connected to, once the job is
// over here: its other hosts may still use them, and then have links.
const spareKept = 10 * time.Minute

// restSpares is called in each tick while the job is over here. The clients end, so that the spare
// servers learn that nobody uses them, and values that nobody uses are removed: they may take much
// memory, and the job's folder is kept for long. The caller holds x.mu.
func (x *job) restSpares(now time.Time) {
	if x.spares.end != nil && len(x.spares.asked) == 0 {
		x.spares.end()
		x.spares.end, x.spares.clients = nil, nil
	}
	switch {
	case len(x.spares.hosts) == 0:
	case x.spares.links > 0:
		x.spares.unused = time.Time{}
	case x.spares.unused.IsZero():
		x.spares.unused = now
	case now.Sub(x.spares.unused) >= spareKept:
		x.spares.unused = now // looked at again, in case another proxy has the file
		x.removeSpare()
	}
}

// askSpares is called in each tick while the job runs. It starts the clients where something waits for
// them: what the router sent before Run was called. The caller holds x.mu.
func (x *job) askSpares() {
	x.spares.unused = time.Time{}
	if len(x.spares.asked) > 0 {
		x.startSpares()
	}
}

// runSpares runs clients until ctx ends.
func runSpares(ctx context.Context, clients []*spare.Client) {
	done := make(chan struct{})
	for _, c := range clients {
		go func() {
			c.Run(ctx)
			done <- struct{}{}
		}()
	}
	for range clients {
		<-done
	}
}

// newSpareClient returns the client of a spare server.
func (x *job) newSpareClient(i int) *spare.Client {
	host := netip.MustParseAddr(x.spares.hosts[i])
	hello := x.spareHello(i)
	var memory spare.Reserver
	if x.jobs.opts.SpareKeep > 0 {
		memory = &x.jobs.spareKept
	}
	return spare.NewClient(spare.ClientOptions{
		Dial: func(ctx context.Context) (spare.Link, error) {
			return x.jobs.opts.DialSpare(ctx, host, hello)
		},
		Answer:  func(a spare.Answer) { x.answerSpare(int32(x.servers+i), a) },
		Room:    x.letGo,
		Traffic: x.spares.traffic[i],
		Merge:   true,
		Wait:    x.jobs.opts.SpareWait,
		Memory:  memory,
		Log:     x.jobs.log.With("job", x.name, "spare_server", host),
	})
}

// enqueueSpare hands a message of the router to the client of the spare server that it is for; the
// caller holds x.mu. again says that another proxy may have sent it. Acknowledgements of PS_RESEND stay
// here: answers are not repeated.
func (x *job) enqueueSpare(worker, rank int32, raw []byte, again bool) {
	m, d, err := decodeSpare(raw, x.router.Speaks(worker))
	if err == nil && !m.Meta.Data() {
		return
	}
	i := int(rank) - x.servers
	x.startSpares()
	switch {
	case err == nil && i >= len(x.spares.clients):
		err = fmt.Errorf("the job has %d spare servers", len(x.spares.hosts))
	case err == nil:
		id := spareID{pair{worker, rank}, m.Meta.Timestamp}
		if _, ok := x.spares.asked[id]; ok {
			return // a repetition of one that is in flight
		}
		var r *spare.Request
		if r, err = spareRequest(worker, m); err == nil {
			r.Single = again
			x.spares.asked[id] = spareAsk{meta: m.Meta.Clone(), dialect: d, raw: raw}
			x.spares.clients[i].Send(r)
			return
		}
	}
	own := int32(0)
	if m != nil {
		own = m.Meta.Timestamp
	}
	x.failSpare(worker, rank, own, err)
}

// decodeSpare decodes a message of the router, which is in dialect d. That of one from another proxy may not be
// known yet.
func decodeSpare(raw []byte, d pslite.Dialect) (*pslite.Message, pslite.Dialect, error) {
	frames, err := cutMessage(raw)
	if err == nil && len(frames) == 0 {
		err = errors.New("a message without frames")
	}
	if err != nil {
		return nil, d, err
	}
	var m pslite.Message
	if d == pslite.Unknown {
		d, err = m.Decode(&pslite.Detector{}, frames)
		return &m, d, err
	}
	m.Data = frames[1:]
	if err := m.Meta.Decode(frames[0], d); err != nil {
		return nil, d, err
	}
	return &m, d, m.Check()
}

// spareRequest returns the request in a message of the router, whose memory it uses.
func spareRequest(worker int32, m *pslite.Message) (*spare.Request, error) {
	if len(m.Data) < 2 {
		return nil, fmt.Errorf("%d data frames, want keys and values", len(m.Data))
	}
	kind, ok := spareKind(m.Values().Type)
	if !ok && m.Meta.Push {
		return nil, fmt.Errorf("values of type %v cannot be added", m.Values().Type)
	}
	r := &spare.Request{Worker: worker, Timestamp: m.Meta.Timestamp, Push: m.Meta.Push, Pull: m.Meta.Pull || !m.Meta.Push, Kind: kind}
	keys, lens := m.Keys(), m.Lens()
	left := m.Data[1]
	n := keys.Len()
	if n == 0 || lens == nil && len(left)%n != 0 || lens != nil && lens.Len() != n {
		return nil, fmt.Errorf("%d keys and %d bytes of values", n, len(left))
	}
	each := len(left) / n
	for i := range n {
		p := spare.Piece{Key: keys.At(i)}
		if r.Push {
			if lens != nil {
				each = int(lens.At(i)) * m.Values().Type.Size()
			}
			if each < 0 || each > len(left) {
				return nil, fmt.Errorf("%d bytes of values for key %d, want %d", len(left), p.Key, each)
			}
			p.Value, left = left[:each:each], left[each:]
		}
		r.Pieces = append(r.Pieces, p)
	}
	return r, nil
}

// spareKind returns how values of a type are added, and false where that is not known.
func spareKind(t pslite.DataType) (element.Kind, bool) {
	switch t {
	case pslite.Float:
		return element.Float32, true
	case pslite.Double:
		return element.Float64, true
	case pslite.Int8, pslite.Uint8:
		return spare.Int8, true
	case pslite.Int16, pslite.Uint16:
		return spare.Int16, true
	case pslite.Int32, pslite.Uint32:
		return spare.Int32, true
	case pslite.Int64, pslite.Uint64:
		return spare.Int64, true
	}
	return 0, false
}

// answerSpare gives the router the answer of a spare server. It is the clients' callback.
func (x *job) answerSpare(rank int32, a spare.Answer) {
	err := x.locked(func() error {
		worker := a.Request.Worker
		id := spareID{pair{worker, rank}, a.Request.Timestamp}
		ask, ok := x.spares.asked[id]
		if !ok {
			return nil
		}
		delete(x.spares.asked, id)
		if a.Err != nil {
			x.failSpare(worker, rank, id.timestamp, a.Err)
			return nil
		}
		m, d := ask.answer(a.Request, a.Values), x.router.Speaks(worker)
		if d == pslite.Unknown {
			d = ask.dialect
		}
		if x.router.Answer(rank, worker, &m.Meta) {
			return nil
		}
		return x.router.TakeAnswer(rank, worker, m, d)
	})
	if err != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.failed = fmt.Errorf("job %s: an answer of a spare server: %w", x.name, err)
		x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
	}
}

// answer returns the answer to a request as a server of PS-lite would send it. That of a pull has
// lengths, from which the router takes the sizes of values; see package route.
func (k *spareAsk) answer(r *spare.Request, values [][]byte) *pslite.Message {
	m := &pslite.Message{Meta: k.meta}
	types := k.meta.DataTypes
	m.Meta.Request, m.Meta.DataTypes, m.Meta.DataSize = false, nil, 0
	if !r.Pull {
		return m
	}
	unit := 1
	if len(types) > 1 {
		unit = types[1].Size()
	}
	data := make([][]byte, 3)
	for i, p := range r.Pieces {
		data[0] = binary.LittleEndian.AppendUint64(data[0], p.Key)
		data[2] = binary.LittleEndian.AppendUint32(data[2], uint32(len(values[i])/unit))
	}
	data[1] = slices.Concat(values...)
	m.Data = data
	m.Meta.DataTypes = append(slices.Clone(types[:min(2, len(types))]), pslite.Int32)
	m.Meta.DataSize = int32(len(data[0]) + len(data[1]) + len(data[2]))
	return m
}

// failSpare handles a request that a spare server cannot serve: one of a move ends the move, one of a
// worker the job; the caller holds x.mu.
func (x *job) failSpare(worker, rank, own int32, err error) {
	host := "?"
	if i := int(rank) - x.servers; i >= 0 && i < len(x.spares.hosts) {
		host = x.spares.hosts[i]
	}
	err = fmt.Errorf("the spare server at %s: %w", host, err)
	if x.router.FailOwn(worker, own, err) {
		return
	}
	if x.failed == nil {
		x.failed = reason.Errorf(reason.State, "job %s: %w: restart the job", x.name, err)
		x.jobs.log.Error("requests of a job are refused", "job", x.name, "error", x.failed)
	}
}

// sparesFull reports whether so much is on its way to spare servers that workers have to wait; the
// caller holds x.mu.
func (x *job) sparesFull() bool {
	all := 0
	for _, c := range x.spares.clients {
		messages, bytes := c.Backlog()
		if all += bytes; messages >= mostQueued || bytes >= mostQueuedBytes || all >= mostSpareBytes {
			return true
		}
	}
	return false
}

// missingSpares returns why no value can be divided now among spare servers, empty: all of them can
// be reached and have room for that many bytes more. The caller holds x.mu.
func (x *job) missingSpares(bytes int) string {
	x.startSpares()
	var away []string
	for i, c := range x.spares.clients {
		switch {
		case !c.Connected():
			away = append(away, x.spares.hosts[i])
		case c.Free() < int64(bytes):
			return fmt.Sprintf("the spare server at %s has room for %d bytes more, and a part has %d", x.spares.hosts[i], c.Free(), bytes)
		}
	}
	if len(away) > 0 {
		return fmt.Sprintf("the proxies at %s are no spare servers of this job: run them with --spare-servers", strings.Join(away[:min(len(away), 4)], ", "))
	}
	return ""
}

// spareStates returns the state of the job's spare servers; the caller holds x.mu.
func (x *job) spareStates() (all []SpareState) {
	for i, host := range x.spares.hosts {
		s := SpareState{Host: host}
		if x.spares.clients != nil {
			c := x.spares.clients[i]
			s.Connected, s.Free = c.Connected(), c.Free()
			s.Requests, s.Bytes = c.Backlog()
		}
		s.SentBytes, s.ReceivedBytes = x.spares.traffic[i].Bytes()
		s.SparedBytes = x.spares.traffic[i].Spared()
		all = append(all, s)
	}
	return all
}

// leftSpares adds what spare servers have not answered to messages that wait for servers, for the
// next proxy; the caller holds x.mu, and the clients have ended.
func (x *job) leftSpares() (all []queued) {
	byPair := map[pair][]spareAsk{}
	for id, ask := range x.spares.asked {
		if x.lasts(id.worker, ask.raw) {
			byPair[id.pair] = append(byPair[id.pair], ask)
		}
	}
	for p, asks := range byPair {
		slices.SortFunc(asks, func(a, b spareAsk) int { return int(a.meta.Timestamp - b.meta.Timestamp) })
		q := queued{Worker: p.worker, Server: p.server}
		for _, k := range asks {
			q.Messages = append(q.Messages, k.raw)
		}
		all = append(all, q)
	}
	return all
}

// closeSpares ends clients and closes the store; the caller holds x.mu.
func (x *job) closeSpares() {
	if x.spares.end != nil {
		x.spares.end()
	}
	if x.spares.server == nil {
		return
	}
	if err := x.spares.server.Release().Close(); err != nil {
		x.jobs.log.Warn("closing the values of a spare server", "job", x.name, "error", err)
	}
	x.spares.server = nil
}
