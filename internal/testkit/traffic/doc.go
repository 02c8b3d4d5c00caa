// Package traffic writes to a cluster as many clients at once would: what it
// leaves is of no meaning, but of every shape that a replicator has to carry over.
//
//	clients   inserts, updates of all kinds, replacements, deletes, of one document
//	          and of many; findAndModify; a few documents that everybody wants;
//	          capped collections, collations, time series
//	          transactions over several collections, small and large, some aborted
//	keeper    creates, drops, renames and changes collections, indexes and views,
//	          while the clients write to some of them
//
// A seed decides what each client tries, one after the other; what comes of it
// depends on the others too. A client survives failovers: it repeats what was lost,
// or lets it be, as the outcome does not matter here. Refusals that such a mixture
// brings are counted; any other error ends the run, as it is a mistake of ours.
//
// Documents are only ever written by their key, and never expire by themselves: when
// Run has returned, nothing writes any more.
package traffic
