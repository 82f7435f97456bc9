package report

// dct returns DCT, on thresholds for gradients and activations.
func dct() Paper {
	splits := func(table string, rows ...string) []Comparison {
		return of("test loss against none", column("activations", table, "against none", rows...))
	}
	bytes := func(head string, rows ...string) []Comparison {
		return of(head+", times fewer bytes", column("activations", "DCT Table 1", head, rows...))
	}
	const dense = "small recommender, criteo-raw-7k, dense layers"
	short := "Eight epochs of 5,600 rows are a short and noisy training: more regularization shows as another loss than after days."
	return Paper{"DCT", "Gupta et al. 2021, Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism", []Item{
		{Name: "Table 1", Claim: "Activations at 90% and 2 or 3 workers cost nothing, at 95% and 3 workers 0.0008 of test loss (of 0.4538).", Part: "activations", StandIn: criteo + "; nets of half of DLRM's units, with --full all", Why: short,
			Compared: join(splits("DCT Table 1", "75%, 1 split", "-0.0006", "90%, 1 split", "-0.0008", "95%, 1 split", "-0.0004", "98%, 1 split", "+0.0024",
				"75%, 2 splits", "-0.0002", "90%, 2 splits", "-0.0001", "95%, 2 splits", "+0.0008", "95%, 4 splits", "not measured"),
				bytes("activations", "90%, 1 split", "10 times", "95%, 1 split", "20 times"), bytes("gradients for them", "90%, 1 split", "10 times", "95%, 1 split", "20 times"))},
		{Name: "Table 2", Claim: "Gradients at up to 98% cost nothing, at 99.5% 0.0009 of test loss.", Part: "threshold", StandIn: criteo, Why: short,
			Compared: of("test loss against none", column("threshold", dense, "against none", "75%", "-0.0004", "90%", "-0.0002", "95%", "+0.0000", "98%", "-0.0001", "99.5%", "+0.0009"))},
		{Name: "Table 3", Claim: "Both at 90% cost nothing, at 95% 0.0010 of test loss.", Part: "activations", StandIn: criteo, Why: short,
			Compared: splits("DCT Table 3", "gradients 75%, activations 75%", "-0.0003", "gradients 90%, activations 90%", "-0.0001", "gradients 95%, activations 95%", "+0.0010", "gradients 98%, activations 90%", "not measured")},
		{Name: "Table 4", Claim: "A translation model's loss is as without at 95% and 2 or 3 workers and at 90% and 5.", Part: "activations-deep", StandIn: "a Transformer of 2+2 layers that translates between made languages, for one of 6+6 on IWSLT'14", Why: "Nets of 256 units have 26 left at 90% and 13 at 95%, those of 1,024 have 102 and 51, and four splits are all of our layers for four of twelve; the training is short, and BLEU of regular sentences is higher.",
			Compared: of("test loss against none", column("activations-deep", "DCT Table 4", "against none", "90%, 1 split", "-0.004", "95%, 1 split", "-0.001", "90%, 2 splits", "-0.002", "95%, 2 splits", "-0.001", "90%, 4 splits", "-0.001", "95%, 4 splits", "+0.007"))},
		{Name: "Table 5", Claim: "12 splits of a production model at 90%: test loss 0.016% better, time 14% less.", Reason: production},
		{Name: "Table 6", Claim: "Gaussian sketching of activations does not do well: 0.0080, 0.0118 and 0.0183 of test loss at 50%, 75% and 90%.", Part: "activations-others", StandIn: criteo, Why: short + " It shows that another codec does badly, which psidecar does not have; the evaluation alone has it.",
			Compared: of("test loss against none", column("activations-others", "DCT Table 6", "against none", "sketch 50%", "+0.0080", "sketch 75%", "+0.0118", "sketch 90%", "+0.0183"))},
		{Name: "Table 7", Claim: "Top-k of the activations' gradients by themselves does not do well: 0.0023, 0.0050 and 0.0251 of test loss.", Part: "activations-others", StandIn: criteo, Why: "As table 6.",
			Compared: of("test loss against none", column("activations-others", "DCT Table 7", "against none", "gradients 50%", "+0.0023", "gradients 75%", "+0.0050", "gradients 90%", "+0.0251"))},
		{Name: "Figure 2", Claim: "Thresholds of gradients stay near their mean, so that they need not be computed in each step.", Part: "gradients-time", StandIn: criteo, Why: "The figure's numbers are not in the paper's text. A training of some hundred steps begins with large gradients, so that the mean is that of its second half.",
			Compared: of("deviation of the threshold, of its mean", column("gradients-time", "DCT Fig. 2", "deviation, of the mean", "90%", "little", "95%", "little", "99.5%", "little"))},
		{Name: "Figure 5", Claim: "Thresholds of activations fall faster where the smallest do not go.", Part: "activations-time", StandIn: criteo, Why: short + " The figure's numbers are not in the paper's text.",
			Compared: of("last threshold, of that without", column("activations-time", "DCT Fig. 5", "last, of whole", "75%", "below 1", "90%", "below 1", "95%", "below 1"))},
		{Name: "Figure 7 a, b", Claim: "A new threshold each step takes 11% more time than none at all; a life-span of 1,000 steps saves 23% and costs nothing.", Part: "lifespan", StandIn: criteo, Why: "Time is that of the codec alone; its selection is not a sort, so that L = 1 costs less than there.",
			Compared: column("lifespan", "Life-span of a threshold", "ns a value", "1", "more than 1000", "1000", "less than 1")},
		{Name: "Figure 7 c, d", Claim: "Up to 99.5% time falls, and nothing is lost.", Part: "threshold", StandIn: criteo, Why: "Bytes stand for time here; time on links of 200 Mbit/s is that of part time, as root.",
			Compared: join(of("bytes of pushes", column("threshold", "small recommender, criteo-raw-7k, all layers", "bytes of pushes", "90%", "10 times", "95%", "20 times", "99.5%", "200 times")),
				of("less time, %", column("time", "Less time to the same loss", "less time %", "threshold=0.99", "37 %", "threshold=0.99 unchanged", "37 %")))},
		{Name: "Theorem 1", Claim: "Up to first order the mean gradient is that of one threshold for all rows, if means of activations by both are equal.", Part: "theorem", StandIn: "a net of two hidden layers of 64 units on MNIST", Why: "The column of assumption (1) says how far it holds, that of the gradient what is left of second order.",
			Compared: one("cosine of the two gradients at the start, 50%", "1", Cell{"theorem", "DCT Theorem 1", "0", "cosine of the two"})},
	}}
}

// parallax returns Parallax, on exchanging sparse and dense parameters in different ways.
func parallax() Paper {
	const byBytes = "By calculation from the paper's sizes and one free number a model, what a byte costs against the computation, which is that with which its own figure 9 comes out for Parallax: TensorFlow's servers and Horovod are then predicted. Bytes alone leave out what servers take to add up, and where a server is the one that all wait for."
	const cluster = "the paper's models by calculation, for 48 GPUs"
	const table4 = "Parallax Table 4: throughput"
	ours := func(model string, heads ...string) []Comparison {
		return of(model+", of plain servers'", row("architectures", table4, model+", its bytes alone", heads...))
	}
	scaled := func(model string, heads ...string) []Comparison {
		return of(model+", of one GPU's with 48", row("architectures", "Parallax Fig. 8 and 9", model, heads...))
	}
	return Paper{"Parallax", "Kim et al. 2019, Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks", []Item{
		{Name: "Table 1", Claim: "Sparse models train faster by parameter servers, dense ones by AllReduce: 5.8k and 7.6k images a second of ResNet-50, 3.8k and 5.9k of Inception-v3, 98.9k and 45.5k words of LM, 102k and 68.3k of NMT.", Part: "architectures", StandIn: cluster, Why: byBytes,
			Compared: of("servers by AllReduce", column("architectures", "Parallax Table 1", "servers by AllReduce", "ResNet-50", "0.76", "Inception-v3", "0.64", "LM", "2.17", "NMT", "1.49"))},
		{Name: "Table 2", Claim: "Throughput by the number of partitions of sparse variables: 1.98 times for LM from 8 to 128.", Reason: noPartition},
		{Name: "Table 3", Claim: "Bytes a machine sends for each kind of variable, by architecture.", Part: "transfer", StandIn: "logistic regression on criteo-80k and a small recommender on " + criteo, Why: "The formulas count values alone; PS-lite's messages have keys of 8 bytes beside those of 4.",
			Compared: of("messages' bytes by the formula's", column("transfer", "Parallax Table 3", "times the formula's", "small recommender, criteo-raw-7k", "1"))},
		{Name: "Table 4", Claim: "Words a second of AR, plain servers, optimised ones and both: LM 45.5k, 98.9k, 250k, 274k, NMT 68.3k, 102k, 116k, 204k. On plain servers' the optimised ones gain 2.5 and 1.1 times, both 2.8 and 2.0.", Part: "architectures", StandIn: "bytes of the paper's models, and a small Transformer for NMT, a recommender and logistic regression on criteo-80k, by calculation", Why: "Bytes alone leave out what TensorFlow's servers take to add pushes up, which local aggregation relieves most on LM, and AllGatherv by OpenMPI, by which AR loses on NMT although it moves less. What a machine's workers use in common is assumed for the paper's models, and measured for ours.",
			Compared: join(ours("LM", "AR", "0.46", "OptPS", "2.53", "HYB", "2.77"), ours("NMT", "AR", "0.67", "OptPS", "1.14", "HYB", "2.00"))},
		{Name: "Table 5", Claim: "Partitions found by regression are within 5% of the best.", Reason: noPartition},
		{Name: "Table 6", Claim: "The sparser the model, the larger the gain over TensorFlow's servers: 2.04 times at alpha 1, 3.42 times at 0.04.", Part: "architectures", StandIn: "by calculation, with 3% of the model's values dense, for a constructed LM whose sizes are not in the paper", Why: "Bytes alone: where nearly all are dense values a ring moves a fifth of what six workers' pulls and pushes do, and the computation, which takes its time in both, is left out. What a machine's workers use is taken to be the same, as frequent words are; were it by chance, less would be gained at an alpha of 0.1 to 0.5 than at 1, as the part's table shows.",
			Compared: of("Parallax by plain servers, alpha", column("architectures", "Parallax Table 6", "all in common", "1.0", "2.04 times", "0.52", "2.33 times", "0.28", "2.43 times", "0.16", "2.89 times", "0.1", "3.02 times", "0.07", "3.03 times", "0.04", "3.42 times"))},
		{Name: "Figure 2", Claim: "Data transfer of each architecture: the drawing of what table 3 has.", Part: "transfer", StandIn: "as table 3", Why: "As table 3."},
		{Name: "Figure 7", Claim: "As accurate as others, in less time: on LM 2.6 and 5.9 times faster than TensorFlow's servers and Horovod with 36 GPUs, on NMT 1.7 and 2.3 times with 24.", Part: "architectures", StandIn: "by calculation, with 6 and 4 machines: steps are the same by each architecture, so that time to a loss is time of a step", Why: byBytes,
			Compared: join(of("LM, 6 machines", row("architectures", "Parallax Fig. 7", "LM", "by plain servers", "2.6 times", "by AllReduce", "5.9 times")), of("NMT, 4 machines", row("architectures", "Parallax Fig. 7", "NMT", "by plain servers", "1.7 times", "by AllReduce", "2.3 times")))},
		{Name: "Figure 8", Claim: "2.8 and 2.0 times the throughput of TensorFlow's servers on LM and NMT with 48 GPUs, and never less than either at any number of machines.", Part: "architectures", StandIn: cluster, Why: byBytes,
			Compared: of("Parallax by plain servers", column("architectures", "Parallax Fig. 8 and 9", "HYB by NaïvePS", "LM", "2.8 times", "NMT", "2.0 times"))},
		{Name: "Figure 9", Claim: "With 48 GPUs 39.8, 43.6, 9.4 and 18.4 times the throughput of one on ResNet-50, Inception-v3, LM and NMT; TensorFlow's servers 30.4, 28.6, 3.4 and 9.1, Horovod 39.8, 44.4, 1.6 and 6.1.", Part: "architectures", StandIn: cluster, Why: byBytes,
			Compared: join(scaled("ResNet-50", "NaïvePS", "30.4 times", "AR", "39.8 times"), scaled("Inception-v3", "NaïvePS", "28.6 times", "AR", "44.4 times"), scaled("LM", "NaïvePS", "3.4 times", "AR", "1.6 times"), scaled("NMT", "NaïvePS", "9.1 times", "AR", "6.1 times"))},
	}}
}
