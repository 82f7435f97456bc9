// Package reason has the reasons for which the proxy ends, refuses or degrades a connection.
// Logs, metrics, status and the answers to other proxies all use these words, so they must
// not change: another version, or an alert, may know them. It imports nothing of this module.
//
// A function that finds a fault returns [Errorf]; callers add context by [Wrap] or %w, which
// both keep the reason; whoever counts it asks [Of].
package reason

import (
	"errors"
	"fmt"
	"slices"
)

// Reason is why a connection did not go as it should, as one word.
type Reason string

// The reasons.
const (
	NoDescriptors  Reason = "no_descriptors"    // the process or the system has no file descriptors left
	Accept         Reason = "accept"            // a listener failed to accept
	TooMany        Reason = "too_many"          // more connections than allowed
	NoDestination  Reason = "no_destination"    // it is unknown where the connection was meant to go
	Loop           Reason = "loop"              // the destination is the proxy itself
	Unreachable    Reason = "unreachable"       // the real destination refused or is not there
	NotAllowed     Reason = "not_allowed"       // the destination is not on the accepting proxy's host
	ForeignPort    Reason = "foreign_port"      // no job's process listens at the destination's port
	Version        Reason = "version"           // the other proxy speaks another version
	NotHello       Reason = "not_hello"         // what came to the mesh port was no hello
	HelloTimeout   Reason = "hello_timeout"     // the hello or its answer did not come in time
	Silent         Reason = "silent"            // reset before its hello, for want of room for the handshakes of its source
	TLS            Reason = "tls"               // no TLS, or an invalid certificate
	Identity       Reason = "identity"          // a valid certificate, but not that of a peer or proxy
	Stopping       Reason = "stopping"          // the proxy is about to end
	NoPeer         Reason = "no_peer"           // no proxy at the destination, and direct connections are not allowed
	MalformedJob   Reason = "malformed_job"     // bytes from the job that are not ZMTP
	MalformedLink  Reason = "malformed_link"    // bytes from the other proxy that are not ZMTP
	Codec          Reason = "codec"             // an encoded message that cannot be decoded
	Reserved       Reason = "reserved_command"  // the job sent a command that is the proxies' own
	Forged         Reason = "forged"            // a message in the name of a node, a scheduler or a host that is elsewhere
	Memory         Reason = "memory"            // no memory for an encoded message within the bound and in time
	Route          Reason = "route"             // a request or answer that does not fit where its keys are
	State          Reason = "state"             // state of the job is lost or cannot be written while its keys are, or may be, displaced
	ResetByJob     Reason = "reset_by_job"      // the job's process reset the connection
	ResetByFarSide Reason = "reset_by_far_side" // the other proxy or the real destination reset the connection
	Stopped        Reason = "stopped"           // ended by the proxy, which was stopped and out of grace time
	NotKept        Reason = "not_kept"          // a connection that was to outlive a proxy could not be resumed
	Starting       Reason = "starting"          // the proxy does not know yet which connections it resumes
	Internal       Reason = "internal"          // anything else; the log has the error
)

// All lists all reasons, for metrics that have a series for each from the start.
var All = []Reason{
	NoDescriptors, Accept, TooMany, NoDestination, Loop, Unreachable, NotAllowed, ForeignPort, Version, NotHello, HelloTimeout, Silent, TLS, Identity,
	Stopping, NoPeer, MalformedJob, MalformedLink, Codec, Reserved, Forged, Memory, Route, State, ResetByJob, ResetByFarSide, Stopped, NotKept, Starting, Internal,
}

// Error is an error with a reason. Its text is that of Err alone.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an [*Error] with a text as of [fmt.Errorf]; %w wraps.
func Errorf(r Reason, format string, args ...any) error {
	return &Error{r, fmt.Errorf(format, args...)}
}

// Of returns the reason of the outermost [*Error] in err's chain, and Internal where there is
// none.
func Of(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Internal
}

// Known returns r, or Internal for a word that is not in [All], such as that of a later
// version. Metrics use it, so that a peer cannot make up series.
func Known(r Reason) Reason {
	if slices.Contains(All, r) {
		return r
	}
	return Internal
}

// Has reports whether err carries a reason.
func Has(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// Wrap returns err with a text before it, and with the reason that it has.
func Wrap(err error, format string, args ...any) error {
	return &Error{Of(err), fmt.Errorf(format+": %w", append(args, err)...)}
}
