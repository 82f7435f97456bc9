// Code generated: made by internal/reasons from reasons.txt; DO NOT EDIT.

package redirect

// What the programs count, as in reasons.txt.
const (
	// ReasonRedirected: connects sent to the proxy's listener.
	ReasonRedirected Reason = 0
	// ReasonNotTCP: connects of sockets that are not TCP.
	ReasonNotTCP Reason = 1
	// ReasonNoGroup: connects in a cgroup without an entry, because it is being attached or detached.
	ReasonNoGroup Reason = 2
	// ReasonExempt: connects of the proxy's own sockets, identified by their mark or their cgroup.
	ReasonExempt Reason = 3
	// ReasonOwnListener: connects to the proxy's listener itself.
	ReasonOwnListener Reason = 4
	// ReasonLoopback: connects to loopback addresses, if those are not redirected.
	ReasonLoopback Reason = 5
	// ReasonExcluded: connects to excluded ports and destinations.
	ReasonExcluded Reason = 6
	// ReasonNoListener: connects in a network namespace in which the proxy has no listener for their cgroup.
	ReasonNoListener Reason = 7
	// ReasonListenerGone: connects for which no socket of the proxy listened at the registered port.
	ReasonListenerGone Reason = 8
	// ReasonBoundDevice: connects of sockets that are bound to a network device, which cannot reach loopback.
	ReasonBoundDevice Reason = 9
	// ReasonNotRemembered: connects whose destination could not be stored, because the table was full.
	ReasonNotRemembered Reason = 10
	// ReasonMptcp: connects of multipath TCP sockets, on kernels that report the whole connection instead of its subflow.
	ReasonMptcp Reason = 11
	// ReasonSpared: connects of a job that only a slow link would have go through the proxy, to a host for which it does not.
	ReasonSpared Reason = 12
	// ReasonRefusedNoListener: connects in a network namespace without a listener, in a cgroup that fails closed.
	ReasonRefusedNoListener Reason = 13
	// ReasonRefusedListenerGone: connects for which no socket of the proxy listened, in a cgroup that fails closed.
	ReasonRefusedListenerGone Reason = 14
	// ReasonRefusedBoundDevice: connects of sockets that are bound to a network device, in a cgroup that fails closed.
	ReasonRefusedBoundDevice Reason = 15
	// ReasonRefusedNotRemembered: connects whose destination could not be stored, in a cgroup that fails closed.
	ReasonRefusedNotRemembered Reason = 16
	// ReasonRefusedMptcp: connects of multipath TCP sockets, on kernels that report the whole connection instead of its subflow, in a cgroup that fails closed.
	ReasonRefusedMptcp Reason = 17
	// ReasonRefusedHeld: connects that are to go direct once an earlier connection through the proxy has ended, and are retried.
	ReasonRefusedHeld Reason = 18
	// ReasonAnswered: lookups of an original destination.
	ReasonAnswered Reason = 19
	// ReasonForgotten: redirected connects whose destination could not be recorded for the proxy's lookup.
	ReasonForgotten Reason = 20
	// ReasonUnknown: lookups of an original destination for a connection that was not redirected or is forgotten.
	ReasonUnknown Reason = 21
)

var reasonTable = [...]reasonText{
	{"redirected", ClassRedirected, "connects sent to the proxy's listener"},
	{"not_tcp", ClassDirect, "connects of sockets that are not TCP"},
	{"no_group", ClassDirect, "connects in a cgroup without an entry, because it is being attached or detached"},
	{"exempt", ClassDirect, "connects of the proxy's own sockets, identified by their mark or their cgroup"},
	{"own_listener", ClassDirect, "connects to the proxy's listener itself"},
	{"loopback", ClassDirect, "connects to loopback addresses, if those are not redirected"},
	{"excluded", ClassDirect, "connects to excluded ports and destinations"},
	{"no_listener", ClassDirect, "connects in a network namespace in which the proxy has no listener for their cgroup"},
	{"listener_gone", ClassDirect, "connects for which no socket of the proxy listened at the registered port"},
	{"bound_device", ClassDirect, "connects of sockets that are bound to a network device, which cannot reach loopback"},
	{"not_remembered", ClassDirect, "connects whose destination could not be stored, because the table was full"},
	{"mptcp", ClassDirect, "connects of multipath TCP sockets, on kernels that report the whole connection instead of its subflow"},
	{"spared", ClassDirect, "connects of a job that only a slow link would have go through the proxy, to a host for which it does not"},
	{"refused_no_listener", ClassRefused, "connects in a network namespace without a listener, in a cgroup that fails closed"},
	{"refused_listener_gone", ClassRefused, "connects for which no socket of the proxy listened, in a cgroup that fails closed"},
	{"refused_bound_device", ClassRefused, "connects of sockets that are bound to a network device, in a cgroup that fails closed"},
	{"refused_not_remembered", ClassRefused, "connects whose destination could not be stored, in a cgroup that fails closed"},
	{"refused_mptcp", ClassRefused, "connects of multipath TCP sockets, on kernels that report the whole connection instead of its subflow, in a cgroup that fails closed"},
	{"refused_held", ClassRefused, "connects that are to go direct once an earlier connection through the proxy has ended, and are retried"},
	{"answered", ClassAnswered, "lookups of an original destination"},
	{"forgotten", ClassUnanswered, "redirected connects whose destination could not be recorded for the proxy's lookup"},
	{"unknown", ClassUnanswered, "lookups of an original destination for a connection that was not redirected or is forgotten"},
}
