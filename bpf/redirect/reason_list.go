// Code generated: made by internal/reasons from reasons.txt; DO NOT EDIT.

package redirect

// What the programs count, as in reasons.txt.
const (
	// ReasonRedirected: connects sent to the proxy's listener.
	ReasonRedirected Reason = 0
	// ReasonNotTCP: connects of sockets that are not TCP.
	ReasonNotTCP Reason = 1
	// ReasonNoGroup: connects in a cgroup whose entry is not there, because it is being attached or detached.
	ReasonNoGroup Reason = 2
	// ReasonExempt: connects of the proxy's own sockets, told by their mark or their cgroup.
	ReasonExempt Reason = 3
	// ReasonOwnListener: connects to the proxy's listener itself.
	ReasonOwnListener Reason = 4
	// ReasonLoopback: connects to loopback addresses, where those are left alone.
	ReasonLoopback Reason = 5
	// ReasonExcluded: connects to excluded ports and destinations.
	ReasonExcluded Reason = 6
	// ReasonNoListener: connects in a network namespace in which the proxy has no listener for their cgroup.
	ReasonNoListener Reason = 7
	// ReasonListenerGone: connects for which no socket of the proxy listened at the registered port.
	ReasonListenerGone Reason = 8
	// ReasonBoundDevice: connects of sockets that are bound to a network device, which cannot reach loopback.
	ReasonBoundDevice Reason = 9
	// ReasonNotRemembered: connects whose destination could not be kept, as the table had no room.
	ReasonNotRemembered Reason = 10
	// ReasonMptcp: connects of multipath TCP sockets where the kernel does not ask for their subflows.
	ReasonMptcp Reason = 11
	// ReasonRefusedNoListener: connects in a network namespace without listener, of a cgroup that fails closed.
	ReasonRefusedNoListener Reason = 12
	// ReasonRefusedListenerGone: connects for which no socket of the proxy listened, of a cgroup that fails closed.
	ReasonRefusedListenerGone Reason = 13
	// ReasonRefusedBoundDevice: connects of sockets that are bound to a network device, of a cgroup that fails closed.
	ReasonRefusedBoundDevice Reason = 14
	// ReasonRefusedNotRemembered: connects whose destination could not be kept, of a cgroup that fails closed.
	ReasonRefusedNotRemembered Reason = 15
	// ReasonRefusedMptcp: connects of multipath TCP sockets where the kernel does not ask for their subflows, of a cgroup that fails closed.
	ReasonRefusedMptcp Reason = 16
	// ReasonAnswered: questions for an original destination.
	ReasonAnswered Reason = 17
	// ReasonForgotten: redirected connects whose destination could not be filed for the proxy to ask for.
	ReasonForgotten Reason = 18
	// ReasonUnknown: questions for an original destination of a connection that was not redirected or is forgotten.
	ReasonUnknown Reason = 19
)

var reasonTable = [...]reasonText{
	{"redirected", ClassRedirected, "connects sent to the proxy's listener"},
	{"not_tcp", ClassDirect, "connects of sockets that are not TCP"},
	{"no_group", ClassDirect, "connects in a cgroup whose entry is not there, because it is being attached or detached"},
	{"exempt", ClassDirect, "connects of the proxy's own sockets, told by their mark or their cgroup"},
	{"own_listener", ClassDirect, "connects to the proxy's listener itself"},
	{"loopback", ClassDirect, "connects to loopback addresses, where those are left alone"},
	{"excluded", ClassDirect, "connects to excluded ports and destinations"},
	{"no_listener", ClassDirect, "connects in a network namespace in which the proxy has no listener for their cgroup"},
	{"listener_gone", ClassDirect, "connects for which no socket of the proxy listened at the registered port"},
	{"bound_device", ClassDirect, "connects of sockets that are bound to a network device, which cannot reach loopback"},
	{"not_remembered", ClassDirect, "connects whose destination could not be kept, as the table had no room"},
	{"mptcp", ClassDirect, "connects of multipath TCP sockets where the kernel does not ask for their subflows"},
	{"refused_no_listener", ClassRefused, "connects in a network namespace without listener, of a cgroup that fails closed"},
	{"refused_listener_gone", ClassRefused, "connects for which no socket of the proxy listened, of a cgroup that fails closed"},
	{"refused_bound_device", ClassRefused, "connects of sockets that are bound to a network device, of a cgroup that fails closed"},
	{"refused_not_remembered", ClassRefused, "connects whose destination could not be kept, of a cgroup that fails closed"},
	{"refused_mptcp", ClassRefused, "connects of multipath TCP sockets where the kernel does not ask for their subflows, of a cgroup that fails closed"},
	{"answered", ClassAnswered, "questions for an original destination"},
	{"forgotten", ClassUnanswered, "redirected connects whose destination could not be filed for the proxy to ask for"},
	{"unknown", ClassUnanswered, "questions for an original destination of a connection that was not redirected or is forgotten"},
}
