-- After a rewind, fires up to this instant may have a run already, so planning looks for it.

ALTER TABLE schedule ADD COLUMN rewound INTEGER;
