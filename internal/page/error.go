package page

import "math"

// CountError returns the error of a count that was scaled up from sampled requests: the true
// count is within it 19 times in 20, if the uses of the key are spread over the job's steps at
// random. It is smaller if every step uses the key, and larger if uses come in bursts.
//
// A sampled request of weight n adds n(n-1) to the variance of a count, whatever happens to the
// others. Requests that no sampled one stands for add one each. The true number of requests is
// known, so the error of the scaling as a whole is too, and is added.
func (s *JobSampling) CountError(count float64) float64 { return s.errorOf(count, 1) }

// UsesError is CountError for a key's pulls and pushes together. A step usually pulls and
// pushes the same keys, and both are sampled or neither, so their sum is no better known than
// either kind alone, counted double.
func (s *JobSampling) UsesError(pulls, pushes float64) float64 {
	return s.errorOf(pulls+pushes, (pulls+pushes)/max(pulls, pushes, 1))
}

// errorOf is CountError for uses that are sampled in groups of together.
func (s *JobSampling) errorOf(count, together float64) float64 {
	if s.Sampled == 0 || s.Requests <= s.Sampled || count <= 0 {
		return 0
	}
	stand := float64(max(s.Estimated, 1)) // requests that the sampled ones stand for
	// Requests are counted even if their keys are not, so it is known by how much the weights
	// of the sampled ones miss the truth.
	off := math.Abs(float64(s.Requests) - stand)
	return 1.96*math.Sqrt(count*together*(float64(s.Spread)+off)/stand) + count*off/stand
}
