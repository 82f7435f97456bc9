// Code generated: made by internal/reasons from reasons.txt; DO NOT EDIT.

package bpf

// What the programs count, as in reasons.txt.
const (
	// ReasonSegments: TCP segments with payload that passed an attached program, and their payload bytes.
	ReasonSegments Reason = 0
	// ReasonCopied: batches handed to the reader, and their bytes.
	ReasonCopied Reason = 1
	// ReasonRetransmitted: segments that repeat bytes already seen, and the repeated bytes.
	ReasonRetransmitted Reason = 2
	// ReasonSteppedGap: gaps in the sequence numbers within one frame, so that the frame boundary was kept, and the missing bytes.
	ReasonSteppedGap Reason = 3
	// ReasonRested: bytes that were not looked at because the programs rested, to stay within their budget: they count as traffic, and their messages are estimated.
	ReasonRested Reason = 4
	// ReasonForeignProtocol: segments of connections that do not begin with a ZMTP greeting.
	ReasonForeignProtocol Reason = 5
	// ReasonForeignZMTP: segments of ZMTP connections with a version or security mechanism that PS-lite does not use.
	ReasonForeignZMTP Reason = 6
	// ReasonForeignMessages: segments of ZMTP connections whose messages are not PS-lite messages.
	ReasonForeignMessages Reason = 7
	// ReasonForeignUnknown: segments of connections older than the capture in which no PS-lite message has been found so far.
	ReasonForeignUnknown Reason = 8
	// ReasonNotTCP: packets that are not TCP.
	ReasonNotTCP Reason = 9
	// ReasonRingFull: batches that did not fit into the ring buffer, and their bytes: the reader is too slow or the ring too small.
	ReasonRingFull Reason = 10
	// ReasonScratchBusy: segments that interrupted too many others on their CPU, so that no buffer was free for them.
	ReasonScratchBusy Reason = 11
	// ReasonStreamBusy: segments that arrived while another CPU was processing an earlier one of the same stream.
	ReasonStreamBusy Reason = 12
	// ReasonStreamTableFull: segments of new streams that did not fit into the table of streams.
	ReasonStreamTableFull Reason = 13
	// ReasonTooManyFrames: segments with more frames than one run may visit; their stream is resynchronized.
	ReasonTooManyFrames Reason = 14
	// ReasonGap: gaps in the sequence numbers across frame boundaries, and the missing bytes; the stream is resynchronized.
	ReasonGap Reason = 15
	// ReasonUnsynced: segments with bytes that passed while the frame boundary was unknown, and those bytes.
	ReasonUnsynced Reason = 16
	// ReasonBadFrame: frames that violate ZMTP or PS-lite, on a stream known as PS-lite; the stream is resynchronized.
	ReasonBadFrame Reason = 17
	// ReasonBadMeta: meta frames of no known dialect on a stream known as PS-lite, and their bytes; copied, but not sampled.
	ReasonBadMeta Reason = 18
	// ReasonTruncated: command frames that were copied only in part, and the omitted bytes.
	ReasonTruncated Reason = 19
	// ReasonUnreadable: segments whose bytes or headers the program could not read.
	ReasonUnreadable Reason = 20
	// ReasonFragment: IP fragments, which are not followed.
	ReasonFragment Reason = 21
	// ReasonNoSocket: segments that belong to no socket.
	ReasonNoSocket Reason = 22
	// ReasonUntimed: segments that could not be followed while only answers are timed (ingress metas), usually because they arrived out of order, and bytes whose answers were therefore not timed; no count depends on them.
	ReasonUntimed Reason = 23
)

var reasonTable = [...]reasonText{
	{"segments", ClassSeen, "TCP segments with payload that passed an attached program, and their payload bytes"},
	{"copied", ClassSeen, "batches handed to the reader, and their bytes"},
	{"retransmitted", ClassSeen, "segments that repeat bytes already seen, and the repeated bytes"},
	{"stepped_gap", ClassSeen, "gaps in the sequence numbers within one frame, so that the frame boundary was kept, and the missing bytes"},
	{"rested", ClassSeen, "bytes that were not looked at because the programs rested, to stay within their budget: they count as traffic, and their messages are estimated"},
	{"foreign_protocol", ClassIgnored, "segments of connections that do not begin with a ZMTP greeting"},
	{"foreign_zmtp", ClassIgnored, "segments of ZMTP connections with a version or security mechanism that PS-lite does not use"},
	{"foreign_messages", ClassIgnored, "segments of ZMTP connections whose messages are not PS-lite messages"},
	{"foreign_unknown", ClassIgnored, "segments of connections older than the capture in which no PS-lite message has been found so far"},
	{"not_tcp", ClassIgnored, "packets that are not TCP"},
	{"ring_full", ClassLost, "batches that did not fit into the ring buffer, and their bytes: the reader is too slow or the ring too small"},
	{"scratch_busy", ClassLost, "segments that interrupted too many others on their CPU, so that no buffer was free for them"},
	{"stream_busy", ClassLost, "segments that arrived while another CPU was processing an earlier one of the same stream"},
	{"stream_table_full", ClassLost, "segments of new streams that did not fit into the table of streams"},
	{"too_many_frames", ClassLost, "segments with more frames than one run may visit; their stream is resynchronized"},
	{"gap", ClassLost, "gaps in the sequence numbers across frame boundaries, and the missing bytes; the stream is resynchronized"},
	{"unsynced", ClassLost, "segments with bytes that passed while the frame boundary was unknown, and those bytes"},
	{"bad_frame", ClassLost, "frames that violate ZMTP or PS-lite, on a stream known as PS-lite; the stream is resynchronized"},
	{"bad_meta", ClassLost, "meta frames of no known dialect on a stream known as PS-lite, and their bytes; copied, but not sampled"},
	{"truncated", ClassLost, "command frames that were copied only in part, and the omitted bytes"},
	{"unreadable", ClassLost, "segments whose bytes or headers the program could not read"},
	{"fragment", ClassLost, "IP fragments, which are not followed"},
	{"no_socket", ClassLost, "segments that belong to no socket"},
	{"untimed", ClassLost, "segments that could not be followed while only answers are timed (ingress metas), usually because they arrived out of order, and bytes whose answers were therefore not timed; no count depends on them"},
}
