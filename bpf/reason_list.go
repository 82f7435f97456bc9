// Code generated: made by internal/reasons from reasons.txt; DO NOT EDIT.

package bpf

// What the programs count, as in reasons.txt.
const (
	// ReasonSegments: TCP segments with payload that passed an attached program, and their payload bytes.
	ReasonSegments Reason = 0
	// ReasonCopied: batches handed to the reader, and their bytes.
	ReasonCopied Reason = 1
	// ReasonRetransmitted: segments that repeat bytes already seen, and the bytes repeated.
	ReasonRetransmitted Reason = 2
	// ReasonSteppedGap: gaps in the sequence numbers that lay inside one frame, so that the frame boundary was kept, and the bytes not seen.
	ReasonSteppedGap Reason = 3
	// ReasonForeignProtocol: segments of connections that do not begin with a ZMTP greeting.
	ReasonForeignProtocol Reason = 4
	// ReasonForeignZMTP: segments of ZMTP connections of another version or security mechanism than PS-lite's.
	ReasonForeignZMTP Reason = 5
	// ReasonForeignMessages: segments of ZMTP connections whose messages are not PS-lite's.
	ReasonForeignMessages Reason = 6
	// ReasonForeignUnknown: segments of connections older than the capture in which no PS-lite message was found so far.
	ReasonForeignUnknown Reason = 7
	// ReasonNotTCP: packets that are not TCP.
	ReasonNotTCP Reason = 8
	// ReasonRingFull: batches that found the ring buffer full, and their bytes: the reader is too slow or the ring too small.
	ReasonRingFull Reason = 9
	// ReasonScratchBusy: segments that interrupted too many others on their CPU, so that no buffer was free for them.
	ReasonScratchBusy Reason = 10
	// ReasonStreamBusy: segments that arrived while another CPU was at an earlier one of the same stream.
	ReasonStreamBusy Reason = 11
	// ReasonStreamTableFull: segments of new streams that found the table of streams full.
	ReasonStreamTableFull Reason = 12
	// ReasonTooManyFrames: segments with more frames than one run may visit; their stream is synchronised anew.
	ReasonTooManyFrames Reason = 13
	// ReasonGap: gaps in the sequence numbers across frame boundaries, and the bytes not seen; the stream is synchronised anew.
	ReasonGap Reason = 14
	// ReasonUnsynced: segments in which bytes passed while the frame boundary was not known, and those bytes.
	ReasonUnsynced Reason = 15
	// ReasonBadFrame: frames that ZMTP or PS-lite forbid, on a stream known as PS-lite; it is synchronised anew.
	ReasonBadFrame Reason = 16
	// ReasonBadMeta: meta frames of no known dialect on a stream known as PS-lite, and their bytes; copied, but not sampled.
	ReasonBadMeta Reason = 17
	// ReasonTruncated: command frames longer than what is copied of them, and the bytes left out.
	ReasonTruncated Reason = 18
	// ReasonUnreadable: segments whose bytes or headers the program could not read.
	ReasonUnreadable Reason = 19
	// ReasonFragment: IP fragments, whose TCP header is not followed.
	ReasonFragment Reason = 20
	// ReasonNoSocket: segments that belong to no socket.
	ReasonNoSocket Reason = 21
	// ReasonUntimed: segments received while only answers are timed (ingress metas) that could not be followed, out of order most often, and bytes whose answers were therefore not timed; no count depends on them.
	ReasonUntimed Reason = 22
)

var reasonTable = [...]reasonText{
	{"segments", ClassSeen, "TCP segments with payload that passed an attached program, and their payload bytes"},
	{"copied", ClassSeen, "batches handed to the reader, and their bytes"},
	{"retransmitted", ClassSeen, "segments that repeat bytes already seen, and the bytes repeated"},
	{"stepped_gap", ClassSeen, "gaps in the sequence numbers that lay inside one frame, so that the frame boundary was kept, and the bytes not seen"},
	{"foreign_protocol", ClassIgnored, "segments of connections that do not begin with a ZMTP greeting"},
	{"foreign_zmtp", ClassIgnored, "segments of ZMTP connections of another version or security mechanism than PS-lite's"},
	{"foreign_messages", ClassIgnored, "segments of ZMTP connections whose messages are not PS-lite's"},
	{"foreign_unknown", ClassIgnored, "segments of connections older than the capture in which no PS-lite message was found so far"},
	{"not_tcp", ClassIgnored, "packets that are not TCP"},
	{"ring_full", ClassLost, "batches that found the ring buffer full, and their bytes: the reader is too slow or the ring too small"},
	{"scratch_busy", ClassLost, "segments that interrupted too many others on their CPU, so that no buffer was free for them"},
	{"stream_busy", ClassLost, "segments that arrived while another CPU was at an earlier one of the same stream"},
	{"stream_table_full", ClassLost, "segments of new streams that found the table of streams full"},
	{"too_many_frames", ClassLost, "segments with more frames than one run may visit; their stream is synchronised anew"},
	{"gap", ClassLost, "gaps in the sequence numbers across frame boundaries, and the bytes not seen; the stream is synchronised anew"},
	{"unsynced", ClassLost, "segments in which bytes passed while the frame boundary was not known, and those bytes"},
	{"bad_frame", ClassLost, "frames that ZMTP or PS-lite forbid, on a stream known as PS-lite; it is synchronised anew"},
	{"bad_meta", ClassLost, "meta frames of no known dialect on a stream known as PS-lite, and their bytes; copied, but not sampled"},
	{"truncated", ClassLost, "command frames longer than what is copied of them, and the bytes left out"},
	{"unreadable", ClassLost, "segments whose bytes or headers the program could not read"},
	{"fragment", ClassLost, "IP fragments, whose TCP header is not followed"},
	{"no_socket", ClassLost, "segments that belong to no socket"},
	{"untimed", ClassLost, "segments received while only answers are timed (ingress metas) that could not be followed, out of order most often, and bytes whose answers were therefore not timed; no count depends on them"},
}
