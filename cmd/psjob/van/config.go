package van

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
)

// Config is the identity and behaviour of a node. [FromEnvironment] fills it from the
// variables that PS-lite's own programs read. Durations of 0 take defaults unless
// they say otherwise.
type Config struct {
	Role             pslite.Role
	Dialect          pslite.Dialect // the generation of PS-lite that the job speaks; Unknown means DMLC
	Servers, Workers int
	Root             string // the scheduler's host name or address
	RootPort         int
	NodeHost         string        // this node's address; empty: found by Interface or by the route to the scheduler
	Interface        string        // whose address to take; empty: the one that leads to the scheduler
	Port             int           // to listen on; 0: any
	Resend           bool          // retransmit unacknowledged messages
	ResendTimeout    time.Duration // until the first repetition
	Drop             int           // percent of the received messages to throw away
	Heartbeat        time.Duration // between two heartbeats; 0: none
	HeartbeatTimeout time.Duration // a silent node counts as dead; 0: never
	Watermark        int           // messages that may wait for one peer before Send blocks
	Verbose          int           // 1: log what happens, 2: every message
	Patience         time.Duration // how long any wait may last, but that for the end of the job
	LostAfter        time.Duration // a node without a connection to this one for so long has died
	ProgressEvery    time.Duration // how often a wait is logged
	Logger           *slog.Logger
	Dialer           Dialer // to other nodes; nil: a net.Dialer
}

// noKeepalive turns TCP's keepalive off: libzmq does not use it, so PS-lite outlives a cut of any
// length while its connections are idle.
const noKeepalive = -1

// A Dialer connects to addresses, as [net.Dialer] does. Tests use one of their own to
// lead connections elsewhere.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// An EnvironmentError names the variable that is missing or wrong.
type EnvironmentError struct {
	Name, Value string
	Set         bool
	Want        string
}

func (e *EnvironmentError) Error() string {
	if !e.Set {
		return fmt.Sprintf("environment variable %s is not set: want %s", e.Name, e.Want)
	}
	return fmt.Sprintf("environment variable %s=%q: want %s", e.Name, e.Value, e.Want)
}

// Defaults of what the environment leaves open.
const (
	defaultResendTimeout = time.Second
	defaultWatermark     = 1000 // ZeroMQ's high-water mark
	defaultPatience      = 10 * time.Minute
	defaultLostAfter     = time.Minute
	defaultProgressEvery = 10 * time.Second
	maxNodes             = 1 << 15
)

// FromEnvironment reads DMLC_ROLE, DMLC_NUM_SERVER, DMLC_NUM_WORKER,
// DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, and if set DMLC_NODE_HOST, DMLC_INTERFACE,
// PORT, DMLC_PS_WATER_MARK, PS_RESEND, PS_RESEND_TIMEOUT, PS_DROP_MSG,
// PS_HEARTBEAT_INTERVAL, PS_HEARTBEAT_TIMEOUT and PS_VERBOSE. DMLC_LOCAL and a
// DMLC_PS_VAN_TYPE other than zmq are refused: a node that ignored them would wait
// for others that speak something else. An error is an [*EnvironmentError].
func FromEnvironment(lookup func(name string) (string, bool)) (Config, error) {
	e := environment{lookup: lookup}
	e.refuse()
	// A default of -1 makes a number required; see number.
	c := Config{
		Role:             e.role(),
		Servers:          e.number("DMLC_NUM_SERVER", -1, 1, maxNodes),
		Workers:          e.number("DMLC_NUM_WORKER", -1, 1, maxNodes),
		Root:             strings.Trim(e.text("DMLC_PS_ROOT_URI", "the scheduler's address or host name"), "[]"),
		RootPort:         e.number("DMLC_PS_ROOT_PORT", -1, 1, math.MaxUint16),
		NodeHost:         strings.Trim(e.optional("DMLC_NODE_HOST"), "[]"),
		Interface:        e.optional("DMLC_INTERFACE"),
		Port:             e.number("PORT", 0, 1, math.MaxUint16),
		Resend:           e.number("PS_RESEND", 0, 0, math.MaxInt32) != 0,
		ResendTimeout:    time.Duration(e.number("PS_RESEND_TIMEOUT", 1000, 1, math.MaxInt32)) * time.Millisecond,
		Drop:             e.number("PS_DROP_MSG", 0, 0, 100),
		Heartbeat:        time.Duration(e.number("PS_HEARTBEAT_INTERVAL", 0, 0, math.MaxInt32)) * time.Second,
		HeartbeatTimeout: time.Duration(e.number("PS_HEARTBEAT_TIMEOUT", 0, 0, math.MaxInt32)) * time.Second,
		Watermark:        e.number("DMLC_PS_WATER_MARK", 0, 0, math.MaxInt32),
		Verbose:          e.number("PS_VERBOSE", 0, 0, 9),
	}
	return c, e.failed
}

// environment reads variables and keeps the first error, so that its caller can list
// all variables in one expression.
type environment struct {
	lookup func(string) (string, bool)
	failed error
}

func (e *environment) fail(name, value string, set bool, want string) {
	if e.failed == nil {
		e.failed = &EnvironmentError{Name: name, Value: value, Set: set, Want: want}
	}
}

// refuse fails for variables that ask for what psjob does not have.
func (e *environment) refuse() {
	// PS-lite would use unix sockets, by which psjob's nodes and its own would not
	// find each other.
	if v := e.optional("DMLC_LOCAL"); v != "" && v != "0" {
		e.fail("DMLC_LOCAL", v, true, "it unset or 0: psjob speaks TCP, not unix sockets; use 127.0.0.1 as DMLC_PS_ROOT_URI")
	}
	if v := e.optional("DMLC_PS_VAN_TYPE"); v != "" && v != "zmq" {
		e.fail("DMLC_PS_VAN_TYPE", v, true, "zmq: psjob has no other transport")
	}
}

// role reads DMLC_ROLE. BytePS's joint nodes are not among psjob's.
func (e *environment) role() pslite.Role {
	const want = "scheduler, server or worker"
	v, ok := e.lookup("DMLC_ROLE")
	switch v {
	case "scheduler":
		return pslite.Scheduler
	case "server":
		return pslite.Server
	case "worker":
		return pslite.Worker
	}
	e.fail("DMLC_ROLE", v, ok, want)
	return 0
}

func (e *environment) optional(name string) string {
	v, _ := e.lookup(name)
	return strings.TrimSpace(v)
}

// text reads a variable that must be set and not empty.
func (e *environment) text(name, want string) string {
	v := e.optional(name)
	if v == "" {
		_, ok := e.lookup(name)
		e.fail(name, v, ok, want)
	}
	return v
}

// number reads a variable between low and high. If it is not set the value is def,
// unless that is negative: then the variable is required.
func (e *environment) number(name string, def, low, high int) int {
	v, ok := e.lookup(name)
	v = strings.TrimSpace(v)
	if v == "" && def >= 0 {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		e.fail(name, v, ok, fmt.Sprintf("a whole number from %d to %d", low, high))
	}
	return n
}

// withDefaults fills in what the caller left open. Interval and timeout of
// heartbeats, and PORT, mean something at 0.
func (c Config) withDefaults() Config {
	if c.Dialer == nil {
		c.Dialer = &net.Dialer{Timeout: handshakeTimeout, KeepAlive: noKeepalive}
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.ResendTimeout, defaultResendTimeout)
	def(&c.Patience, defaultPatience)
	def(&c.LostAfter, defaultLostAfter)
	def(&c.ProgressEvery, defaultProgressEvery)
	if c.Watermark == 0 {
		c.Watermark = defaultWatermark
	}
	if c.Dialect == pslite.Unknown {
		c.Dialect = pslite.DMLC
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// rootAddress is where the scheduler listens.
func (c Config) rootAddress() string { return net.JoinHostPort(c.Root, strconv.Itoa(c.RootPort)) }

// ownHost returns the address that this node gives to the others. It has to be one
// that they can reach, which only the user knows for sure; the address from which the
// scheduler is reached is the best guess. The scheduler's is the one that all nodes
// are configured with.
func (c Config) ownHost() (string, error) {
	switch {
	case c.Role == pslite.Scheduler:
		return c.Root, nil
	case c.NodeHost != "":
		return c.NodeHost, nil
	case c.Interface != "":
		return interfaceAddress(c.Interface)
	}
	// Connecting a datagram socket sends nothing; it makes the kernel choose the
	// route.
	probe, err := net.Dial("udp", c.rootAddress())
	if err != nil {
		return "", fmt.Errorf("finding the address that leads to the scheduler %s (set DMLC_NODE_HOST to name this node's own): %w", c.rootAddress(), err)
	}
	defer probe.Close()
	return probe.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

// interfaceAddress returns an address of a network interface, IPv4 if it has one, as
// PS-lite takes it. All errors name the variable: the user has chosen the interface
// by it.
func interfaceAddress(name string) (string, error) {
	want := func(why string) error {
		return &EnvironmentError{Name: "DMLC_INTERFACE", Value: name, Set: true, Want: "a network interface with an address: " + why}
	}
	link, err := net.InterfaceByName(name)
	if err != nil {
		return "", want(err.Error())
	}
	addrs, err := link.Addrs()
	if err != nil {
		return "", want(err.Error())
	}
	var six string
	for _, a := range addrs {
		ip, ok := a.(*net.IPNet)
		switch {
		// Link-local addresses mean nothing without the interface, which others call
		// differently.
		case !ok || ip.IP.IsLinkLocalUnicast():
		case ip.IP.To4() != nil:
			return ip.IP.String(), nil
		case six == "":
			six = ip.IP.String()
		}
	}
	if six == "" {
		return "", want("it has none")
	}
	return six, nil
}
