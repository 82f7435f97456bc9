package migrate

// fault is a defect that is put into a site, so that the search has something to
// find.
type fault uint8

const (
	sound         fault = iota
	acksEarly           // a request is acknowledged to the worker before any server has it
	flipsEarly          // keys are sent to their new owner before the store has it
	quietEarly          // a site says that nothing is under way, whether or not
	joinsAlone          // a site that was killed does not wait for what the other holds
	forgetsSeen         // requests that are repeated when they are over are taken for new ones
	forgetsOpened       // what was under way is forgotten with a site that is killed
	teachesHeld         // a host teaches owners of keys that are moving as if it knew
	dropsRecorded       // a job that is over gives up what the store may have recorded
	asksPast            // keys move though some connections do not come by here
)

func (f fault) String() string {
	return [...]string{"sound", "acks early", "flips early", "quiet early", "joins alone", "forgets what was seen", "forgets what was opened", "teaches what it holds", "drops what is recorded", "moves keys past connections"}[f]
}
