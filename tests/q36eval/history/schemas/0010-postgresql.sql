SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.artifacts (
    run_id character varying NOT NULL,
    name character varying NOT NULL,
    sha256 character varying NOT NULL,
    size_bytes bigint NOT NULL
);
CREATE TABLE public.asked (
    id bigint NOT NULL,
    probe character varying NOT NULL,
    item_group character varying NOT NULL,
    item_key character varying NOT NULL
);
CREATE SEQUENCE public.asked_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asked_id_seq OWNED BY public.asked.id;
CREATE TABLE public.blessings (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    at character varying NOT NULL,
    revoked character varying,
    revoked_by character varying,
    revoked_why text,
    imported character varying,
    accepted character varying,
    accepted_by character varying
);
CREATE SEQUENCE public.blessings_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.blessings_id_seq OWNED BY public.blessings.id;
CREATE TABLE public.criteria_results (
    run integer NOT NULL,
    criterion character varying NOT NULL,
    metric integer NOT NULL,
    tier character varying NOT NULL,
    verdict character varying NOT NULL,
    waived boolean NOT NULL,
    loss double precision,
    loss_lower double precision,
    loss_upper double precision,
    "limit" double precision
);
CREATE TABLE public.earlier_decisions (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    replaced character varying NOT NULL,
    report bigint NOT NULL,
    circumstances bigint
);
CREATE SEQUENCE public.earlier_decisions_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.earlier_decisions_id_seq OWNED BY public.earlier_decisions.id;
CREATE TABLE public.engine_events (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    at character varying NOT NULL,
    kind character varying NOT NULL,
    message text NOT NULL
);
CREATE SEQUENCE public.engine_events_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.engine_events_id_seq OWNED BY public.engine_events.id;
CREATE TABLE public.items (
    run integer NOT NULL,
    asked bigint NOT NULL,
    "position" integer NOT NULL,
    must_pass boolean NOT NULL,
    flip smallint,
    errored boolean NOT NULL,
    question bigint NOT NULL,
    answer bigint NOT NULL
);
CREATE TABLE public.kept_drifts (
    family character varying NOT NULL,
    branch character varying NOT NULL,
    stand character varying NOT NULL,
    found text NOT NULL
);
CREATE TABLE public.ledger (
    "position" integer NOT NULL,
    previous character varying NOT NULL,
    sha256 character varying NOT NULL,
    at character varying NOT NULL,
    kind character varying NOT NULL,
    run_id character varying,
    content text NOT NULL
);
CREATE TABLE public.measurements (
    run integer NOT NULL,
    metric integer NOT NULL,
    "position" integer NOT NULL,
    reading integer NOT NULL,
    value double precision,
    reference_value double precision,
    effect double precision,
    lower double precision,
    upper double precision,
    scored integer NOT NULL,
    errored integer NOT NULL,
    note text NOT NULL,
    not_finite json,
    value_interval json,
    clusters bigint,
    competence bigint,
    causes json,
    unreadable integer NOT NULL
);
CREATE TABLE public.metrics (
    id integer NOT NULL,
    probe character varying NOT NULL,
    metric character varying NOT NULL,
    slice character varying NOT NULL
);
CREATE SEQUENCE public.metrics_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.metrics_id_seq OWNED BY public.metrics.id;
CREATE TABLE public.probe_failures (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    probe character varying NOT NULL,
    kind character varying NOT NULL,
    reason text NOT NULL
);
CREATE SEQUENCE public.probe_failures_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.probe_failures_id_seq OWNED BY public.probe_failures.id;
CREATE TABLE public.readings (
    id integer NOT NULL,
    unit character varying NOT NULL,
    direction character varying NOT NULL,
    estimator character varying NOT NULL,
    level double precision NOT NULL,
    method character varying NOT NULL
);
CREATE SEQUENCE public.readings_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.readings_id_seq OWNED BY public.readings.id;
CREATE TABLE public.run_progress (
    run_id character varying NOT NULL,
    stage text NOT NULL,
    done integer NOT NULL,
    total integer NOT NULL,
    at character varying NOT NULL
);
CREATE TABLE public.runs (
    number integer NOT NULL,
    id character varying NOT NULL,
    family character varying NOT NULL,
    branch character varying NOT NULL,
    state character varying NOT NULL,
    started character varying NOT NULL,
    finished character varying,
    verdict character varying,
    policy_name character varying,
    lanes json,
    waived boolean NOT NULL,
    awaiting_sign_off boolean NOT NULL,
    exit_code integer,
    imported character varying,
    checkpoint_sha256 character varying,
    engine_version character varying,
    identity bigint,
    reference_identity bigint,
    policy bigint,
    suites bigint NOT NULL,
    provenance bigint NOT NULL,
    report bigint,
    circumstances bigint,
    timings bigint NOT NULL
);
CREATE SEQUENCE public.runs_number_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_number_seq OWNED BY public.runs.number;
CREATE TABLE public.sign_offs (
    id integer NOT NULL,
    run_id character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    at character varying NOT NULL,
    report_sha256 character varying NOT NULL,
    imported character varying,
    accepted character varying,
    accepted_by character varying
);
CREATE SEQUENCE public.sign_offs_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.sign_offs_id_seq OWNED BY public.sign_offs.id;
CREATE TABLE public.texts (
    id bigint NOT NULL,
    sha256 bytea NOT NULL,
    data bytea NOT NULL
);
CREATE SEQUENCE public.texts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.texts_id_seq OWNED BY public.texts.id;
CREATE TABLE public.waivers (
    id integer NOT NULL,
    family character varying NOT NULL,
    branch character varying NOT NULL,
    owner character varying NOT NULL,
    reason text NOT NULL,
    criterion character varying,
    expires character varying NOT NULL,
    revoked character varying,
    canary character varying,
    slice character varying,
    added character varying NOT NULL,
    revoked_by character varying,
    imported character varying,
    accepted character varying,
    accepted_by character varying
);
CREATE SEQUENCE public.waivers_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.waivers_id_seq OWNED BY public.waivers.id;
ALTER TABLE ONLY public.asked ALTER COLUMN id SET DEFAULT nextval('public.asked_id_seq'::regclass);
ALTER TABLE ONLY public.blessings ALTER COLUMN id SET DEFAULT nextval('public.blessings_id_seq'::regclass);
ALTER TABLE ONLY public.earlier_decisions ALTER COLUMN id SET DEFAULT nextval('public.earlier_decisions_id_seq'::regclass);
ALTER TABLE ONLY public.engine_events ALTER COLUMN id SET DEFAULT nextval('public.engine_events_id_seq'::regclass);
ALTER TABLE ONLY public.metrics ALTER COLUMN id SET DEFAULT nextval('public.metrics_id_seq'::regclass);
ALTER TABLE ONLY public.probe_failures ALTER COLUMN id SET DEFAULT nextval('public.probe_failures_id_seq'::regclass);
ALTER TABLE ONLY public.readings ALTER COLUMN id SET DEFAULT nextval('public.readings_id_seq'::regclass);
ALTER TABLE ONLY public.runs ALTER COLUMN number SET DEFAULT nextval('public.runs_number_seq'::regclass);
ALTER TABLE ONLY public.sign_offs ALTER COLUMN id SET DEFAULT nextval('public.sign_offs_id_seq'::regclass);
ALTER TABLE ONLY public.texts ALTER COLUMN id SET DEFAULT nextval('public.texts_id_seq'::regclass);
ALTER TABLE ONLY public.waivers ALTER COLUMN id SET DEFAULT nextval('public.waivers_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0010');
INSERT INTO public.artifacts VALUES ('20261128-004822-618ac0', 'tokens.parquet', 'c51e455b41df6c017327e16001dd064b8b6733faeaa69b23d9bd79c8079237d5', 6);
INSERT INTO public.artifacts VALUES ('20261128-004822-618ac0', 'worst_tokens.json', '4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945', 2);
INSERT INTO public.artifacts VALUES ('20261128-004824-2abd70', 'tokens.parquet', 'c51e455b41df6c017327e16001dd064b8b6733faeaa69b23d9bd79c8079237d5', 6);
INSERT INTO public.artifacts VALUES ('20261128-004824-2abd70', 'worst_tokens.json', '4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945', 2);
INSERT INTO public.asked VALUES (1, 'evals', 'sums', 'a');
INSERT INTO public.asked VALUES (2, 'evals', 'sums', 'b');
INSERT INTO public.asked VALUES (3, 'evals', 'sums', 'c');
INSERT INTO public.asked VALUES (4, 'canaries', 'canary-0', 'item 0');
INSERT INTO public.asked VALUES (5, 'canaries', 'canary-0', 'item 3');
INSERT INTO public.asked VALUES (6, 'canaries', 'canary-0', 'item 6');
INSERT INTO public.asked VALUES (7, 'canaries', 'canary-0', 'item 9');
INSERT INTO public.asked VALUES (8, 'canaries', 'canary-1', 'item 1');
INSERT INTO public.asked VALUES (9, 'canaries', 'canary-1', 'item 10');
INSERT INTO public.asked VALUES (10, 'canaries', 'canary-1', 'item 4');
INSERT INTO public.asked VALUES (11, 'canaries', 'canary-1', 'item 7');
INSERT INTO public.asked VALUES (12, 'canaries', 'canary-2', 'item 11');
INSERT INTO public.asked VALUES (13, 'canaries', 'canary-2', 'item 2');
INSERT INTO public.asked VALUES (14, 'canaries', 'canary-2', 'item 5');
INSERT INTO public.asked VALUES (15, 'canaries', 'canary-2', 'item 8');
INSERT INTO public.blessings VALUES (1, '20261128-004822-618ac0', 'eva', 'release 1', '2026-11-28T00:48:23.418961+00:00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.blessings VALUES (2, '20261128-004824-2abd70', 'eva', 'release 1', '2026-11-28T00:48:25.291429+00:00', NULL, NULL, NULL, '2026-04-01T00:00:00.000000+00:00', NULL, NULL);
INSERT INTO public.blessings VALUES (3, '20261128-004824-2abd70', 'zoe', 'the same build', '2026-11-28T00:48:25.732354+00:00', NULL, NULL, NULL, '2026-04-01T00:00:00.000000+00:00', '2026-11-28T00:48:25.898971+00:00', 'eva');
INSERT INTO public.criteria_results VALUES (1, 'intact', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.criteria_results VALUES (1, 'mmlu', 2, 'blocking', 'PASS', false, 0, -0.030249211384216323, 0.025054855475900695, 0.09999999999999998);
INSERT INTO public.criteria_results VALUES (1, 'tools', 1, 'blocking', 'FAIL', true, 0.4, 0.30173037496317257, 0.5226478325381549, 0.1);
INSERT INTO public.criteria_results VALUES (2, 'intact', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.criteria_results VALUES (2, 'integrity.damaged-checkpoint', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.criteria_results VALUES (4, 'intact', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.criteria_results VALUES (4, 'mmlu', 2, 'blocking', 'PASS', false, 0, -0.030249211384216323, 0.025054855475900695, 0.09999999999999998);
INSERT INTO public.criteria_results VALUES (4, 'tools', 1, 'blocking', 'FAIL', true, 0.4, 0.30173037496317257, 0.5226478325381549, 0.1);
INSERT INTO public.criteria_results VALUES (5, 'intact', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.criteria_results VALUES (5, 'integrity.damaged-checkpoint', 3, 'blocking', 'PASS', false, 0, 0, 0, 0);
INSERT INTO public.earlier_decisions VALUES (1, '20261128-004822-618ac0', '2026-11-28T00:48:23.555571+00:00', 18, 17);
INSERT INTO public.earlier_decisions VALUES (2, '20261128-004824-2abd70', '2026-11-28T00:48:25.466497+00:00', 18, 43);
INSERT INTO public.engine_events VALUES (1, '20261128-004822-618ac0', '2026-03-01T00:00:00.000000+00:00', 'begun', 'began');
INSERT INTO public.engine_events VALUES (2, '20261128-004824-2e3b83', '2026-11-28T00:48:24.343569+00:00', 'retry', 'batch 0');
INSERT INTO public.engine_events VALUES (3, '20261128-004824-2abd70', '2026-03-01T00:00:00.000000+00:00', 'begun', 'began');
INSERT INTO public.engine_events VALUES (4, '20261128-004825-df4bce', '2026-11-28T00:48:26.039123+00:00', 'retry', 'batch 0');
INSERT INTO public.items VALUES (1, 1, 0, false, NULL, false, 14, 12);
INSERT INTO public.items VALUES (1, 2, 1, false, 1, false, 11, 13);
INSERT INTO public.items VALUES (1, 3, 2, false, NULL, true, 16, 15);
INSERT INTO public.items VALUES (2, 12, 0, false, NULL, false, 26, 23);
INSERT INTO public.items VALUES (2, 9, 1, false, NULL, false, 32, 35);
INSERT INTO public.items VALUES (2, 7, 2, false, NULL, false, 22, 23);
INSERT INTO public.items VALUES (2, 15, 3, false, NULL, false, 27, 33);
INSERT INTO public.items VALUES (2, 11, 4, false, NULL, false, 38, 23);
INSERT INTO public.items VALUES (2, 6, 5, false, NULL, false, 39, 28);
INSERT INTO public.items VALUES (2, 14, 6, false, NULL, false, 31, 23);
INSERT INTO public.items VALUES (2, 10, 7, false, NULL, false, 37, 24);
INSERT INTO public.items VALUES (2, 5, 8, false, NULL, false, 36, 23);
INSERT INTO public.items VALUES (2, 13, 9, false, NULL, false, 30, 21);
INSERT INTO public.items VALUES (2, 8, 10, false, NULL, false, 34, 23);
INSERT INTO public.items VALUES (2, 4, 11, false, NULL, false, 25, 29);
INSERT INTO public.items VALUES (4, 1, 0, false, NULL, false, 14, 12);
INSERT INTO public.items VALUES (4, 2, 1, false, 1, false, 11, 13);
INSERT INTO public.items VALUES (4, 3, 2, false, NULL, true, 16, 15);
INSERT INTO public.items VALUES (5, 12, 0, false, NULL, false, 26, 23);
INSERT INTO public.items VALUES (5, 9, 1, false, NULL, false, 32, 47);
INSERT INTO public.items VALUES (5, 7, 2, false, NULL, false, 22, 23);
INSERT INTO public.items VALUES (5, 15, 3, false, NULL, false, 27, 48);
INSERT INTO public.items VALUES (5, 11, 4, false, NULL, false, 38, 23);
INSERT INTO public.items VALUES (5, 6, 5, false, NULL, false, 39, 45);
INSERT INTO public.items VALUES (5, 14, 6, false, NULL, false, 31, 23);
INSERT INTO public.items VALUES (5, 10, 7, false, NULL, false, 37, 44);
INSERT INTO public.items VALUES (5, 5, 8, false, NULL, false, 36, 23);
INSERT INTO public.items VALUES (5, 13, 9, false, NULL, false, 30, 49);
INSERT INTO public.items VALUES (5, 8, 10, false, NULL, false, 34, 23);
INSERT INTO public.items VALUES (5, 4, 11, false, NULL, false, 25, 46);
INSERT INTO public.ledger VALUES (0, '', '3de29face01bb453e0ff1c5aefe8da316650e38415510a7301ccc6362fcbd290', '2026-11-28T00:48:22.605756+00:00', 'history', NULL, '{"id": "95c833314b334986ba43d77fc7c95676"}');
INSERT INTO public.ledger VALUES (1, '3de29face01bb453e0ff1c5aefe8da316650e38415510a7301ccc6362fcbd290', '456f9b52372f7fac458f0b346466dca076f0b90d981aa8dcf183d0300523cf9c', '2026-11-28T00:48:24.099614+00:00', 'sign-off', '20261128-004822-618ac0', '{"row": {"accepted": null, "accepted_by": null, "at": "2026-11-28T00:48:23.780904+00:00", "id": 1, "imported": null, "owner": "jan", "reason": "read it", "report_sha256": "4c1a6883127ece805a878228218f0919c78138394ee7e5bcc7398503b777e9bf", "run_id": "20261128-004822-618ac0"}, "why": ""}');
INSERT INTO public.ledger VALUES (2, '456f9b52372f7fac458f0b346466dca076f0b90d981aa8dcf183d0300523cf9c', 'ca460a19c835b4b8937231359fa791b008066dd608265af2532d37710e1229a9', '2026-11-28T00:48:24.113641+00:00', 'blessing', '20261128-004822-618ac0', '{"row": {"accepted": null, "accepted_by": null, "at": "2026-11-28T00:48:23.418961+00:00", "id": 1, "imported": null, "owner": "eva", "reason": "release 1", "revoked": null, "revoked_by": null, "revoked_why": null, "run_id": "20261128-004822-618ac0"}, "why": ""}');
INSERT INTO public.ledger VALUES (3, 'ca460a19c835b4b8937231359fa791b008066dd608265af2532d37710e1229a9', 'ce7863305ea1530e5fb1d9e588376b99423974110e728be08c0ca57e9c3788ae', '2026-11-28T00:48:24.166344+00:00', 'run', '20261128-004822-618ac0', '{"awaiting_sign_off": false, "circumstances": "b0fc4023878fbcbf6f89df83338d950241fee302f7bb36531a07627a5fe6a696", "earlier": [["2026-11-28T00:48:23.555571+00:00", "ea363e80a10786bab1415a95dccdfaed481d84e93b3b395756aa61914383ed37", "8277aaad4361425b749e3509415aae57d821f74b7c82e0003163ecb21cbb3fc4"]], "evidence": "1601d754aafe3afd1b68bf75c7343cd63488b79b9a4048c4fac52a60e440bd05", "exit_code": 0, "finished": "2026-11-28T00:48:23.294482+00:00", "imported": null, "lanes": {"freeform": "PASS", "structured": "PASS"}, "report": "e2b9c0338bb9249f40461b0dda25fb74887b47d5ee106f92d9fe5889f6eb8d69", "run": "20261128-004822-618ac0", "verdict": "PASS", "waived": true}');
INSERT INTO public.ledger VALUES (4, 'ce7863305ea1530e5fb1d9e588376b99423974110e728be08c0ca57e9c3788ae', '67b68a2c3f7d0d7f87e55fe2d151df82c8fb603ad8a6e2124da29683dc1b2dfa', '2026-11-28T00:48:24.206396+00:00', 'waiver', NULL, '{"row": {"accepted": null, "accepted_by": null, "added": "2026-11-28T00:48:23.455964+00:00", "branch": "main", "canary": null, "criterion": "tools", "expires": "2026-03-31", "family": "sandbox", "id": 1, "imported": null, "owner": "eva", "reason": "known", "revoked": null, "revoked_by": null, "slice": null}, "why": ""}');
INSERT INTO public.ledger VALUES (5, '67b68a2c3f7d0d7f87e55fe2d151df82c8fb603ad8a6e2124da29683dc1b2dfa', '7d9e75c02563072706d2b7d4d8cc268cda02c213bff28929b5983b88cdc3e692', '2026-11-28T00:48:24.440411+00:00', 'run', '20261128-004824-2e3b83', '{"awaiting_sign_off": false, "circumstances": null, "earlier": [], "evidence": "5294b2d7ca7a1c57ca5dc014d5f411a5be1b352321d0900852c6aa707412c516", "exit_code": 0, "finished": "2026-11-28T00:48:24.374415+00:00", "imported": null, "lanes": {"freeform": "PASS"}, "report": "756f3b1bf205b9e028202275286774b157d691a5ba3397d34f26f3c6ff7aa4c3", "run": "20261128-004824-2e3b83", "verdict": "PASS", "waived": false}');
INSERT INTO public.ledger VALUES (6, '7d9e75c02563072706d2b7d4d8cc268cda02c213bff28929b5983b88cdc3e692', 'b08852eda83e75c033069c4c5d5a86943b740f8a1999100662f4a2e0e4c03662', '2026-11-28T00:48:25.819981+00:00', 'sign-off imported', '20261128-004824-2abd70', '{"row": {"accepted": null, "accepted_by": null, "at": "2026-11-28T00:48:25.706520+00:00", "id": 2, "imported": "2026-04-01T00:00:00.000000+00:00", "owner": "jan", "reason": "read it", "report_sha256": "4c1a6883127ece805a878228218f0919c78138394ee7e5bcc7398503b777e9bf", "run_id": "20261128-004824-2abd70"}, "why": ""}');
INSERT INTO public.ledger VALUES (7, 'b08852eda83e75c033069c4c5d5a86943b740f8a1999100662f4a2e0e4c03662', 'c02a3c106277aeb6637dede7f727c9bb44c7a4e54d7d4d2b692132712d1331d9', '2026-11-28T00:48:25.828987+00:00', 'blessing imported', '20261128-004824-2abd70', '{"row": {"accepted": null, "accepted_by": null, "at": "2026-11-28T00:48:25.291429+00:00", "id": 2, "imported": "2026-04-01T00:00:00.000000+00:00", "owner": "eva", "reason": "release 1", "revoked": null, "revoked_by": null, "revoked_why": null, "run_id": "20261128-004824-2abd70"}, "why": ""}');
INSERT INTO public.ledger VALUES (8, 'c02a3c106277aeb6637dede7f727c9bb44c7a4e54d7d4d2b692132712d1331d9', '2471c4a26269cb02d28296148d3a8f7849b67c053af82d205203730e6bd06f8b', '2026-11-28T00:48:25.832680+00:00', 'blessing imported', '20261128-004824-2abd70', '{"row": {"accepted": null, "accepted_by": null, "at": "2026-11-28T00:48:25.732354+00:00", "id": 3, "imported": "2026-04-01T00:00:00.000000+00:00", "owner": "zoe", "reason": "the same build", "revoked": null, "revoked_by": null, "revoked_why": null, "run_id": "20261128-004824-2abd70"}, "why": ""}');
INSERT INTO public.ledger VALUES (9, '2471c4a26269cb02d28296148d3a8f7849b67c053af82d205203730e6bd06f8b', '749f95b55c18200596bef1f3229b2d1e9ddd36c0b0b07712a9a2e988a474e0c6', '2026-11-28T00:48:25.846138+00:00', 'run', '20261128-004824-2abd70', '{"awaiting_sign_off": false, "circumstances": "62d365bf9c4ee9476ee52254679bbedf7438ff3f9e2573c56b4facf6e19560fc", "earlier": [["2026-11-28T00:48:25.466497+00:00", "ea363e80a10786bab1415a95dccdfaed481d84e93b3b395756aa61914383ed37", "4d77952e4d035427b0d8becacd351ba4ba098378a366d17c46be589392e98a3c"]], "evidence": "e6321a9c5d352f1c987acbdbbcc990c6063b95cd0ca2b27c503ae1fac22efe86", "exit_code": 0, "finished": "2026-11-28T00:48:25.184249+00:00", "imported": "2026-04-01T00:00:00.000000+00:00", "lanes": {"freeform": "PASS", "structured": "PASS"}, "report": "e2b9c0338bb9249f40461b0dda25fb74887b47d5ee106f92d9fe5889f6eb8d69", "run": "20261128-004824-2abd70", "verdict": "PASS", "waived": true}');
INSERT INTO public.ledger VALUES (10, '749f95b55c18200596bef1f3229b2d1e9ddd36c0b0b07712a9a2e988a474e0c6', 'e1faaeda6d9be6074c9f3a939f26c57e799209e8ce4e4b6f72235655001a0258', '2026-11-28T00:48:25.864029+00:00', 'waiver imported', NULL, '{"row": {"accepted": null, "accepted_by": null, "added": "2026-11-28T00:48:25.847933+00:00", "branch": "main", "canary": null, "criterion": "mmlu", "expires": "2026-04-30", "family": "sandbox", "id": 2, "imported": "2026-04-01T00:00:00.000000+00:00", "owner": "zoe", "reason": "elsewhere", "revoked": null, "revoked_by": null, "slice": null}, "why": ""}');
INSERT INTO public.ledger VALUES (11, 'e1faaeda6d9be6074c9f3a939f26c57e799209e8ce4e4b6f72235655001a0258', '3c137af5a5b2751b4ef7c96582468455134ebe126f923b8afdde2bb9406bacfa', '2026-11-28T00:48:25.920351+00:00', 'blessing accepted', '20261128-004824-2abd70', '{"row": {"accepted": "2026-11-28T00:48:25.898971+00:00", "accepted_by": "eva", "at": "2026-11-28T00:48:25.732354+00:00", "id": 3, "imported": "2026-04-01T00:00:00.000000+00:00", "owner": "zoe", "reason": "the same build", "revoked": null, "revoked_by": null, "revoked_why": null, "run_id": "20261128-004824-2abd70"}, "why": "our build too"}');
INSERT INTO public.ledger VALUES (12, '3c137af5a5b2751b4ef7c96582468455134ebe126f923b8afdde2bb9406bacfa', '3061db5c3e1dd690355180dd865028b9c4e2ffa734dd0463abb4c4816ecd5e77', '2026-11-28T00:48:26.171577+00:00', 'run', '20261128-004825-df4bce', '{"awaiting_sign_off": false, "circumstances": null, "earlier": [], "evidence": "66c066551ecf72cc56c48cd8a48de81cebf99726f2af84c44d8cda70ef0001a6", "exit_code": 0, "finished": "2026-11-28T00:48:26.096212+00:00", "imported": null, "lanes": {"freeform": "PASS"}, "report": "756f3b1bf205b9e028202275286774b157d691a5ba3397d34f26f3c6ff7aa4c3", "run": "20261128-004825-df4bce", "verdict": "PASS", "waived": false}');
INSERT INTO public.measurements VALUES (1, 2, 0, 1, 0.9, 0.9, 0, -0.022580227204857195, 0.022580227204857195, 200, 0, '', NULL, NULL, 8, 9, NULL, 0);
INSERT INTO public.measurements VALUES (1, 1, 1, 3, 0.4, 0, 0.4, 0.30116127134335713, 0.5226478325381549, 200, 0, '', NULL, NULL, 7, 10, NULL, 0);
INSERT INTO public.measurements VALUES (1, 3, 2, 2, 0, NULL, 0, 0, 0, 100, 0, '', NULL, NULL, 6, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (2, 4, 0, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 40, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (2, 3, 1, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 40, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (4, 2, 0, 1, 0.9, 0.9, 0, -0.022580227204857195, 0.022580227204857195, 200, 0, '', NULL, NULL, 8, 9, NULL, 0);
INSERT INTO public.measurements VALUES (4, 1, 1, 3, 0.4, 0, 0.4, 0.30116127134335713, 0.5226478325381549, 200, 0, '', NULL, NULL, 7, 10, NULL, 0);
INSERT INTO public.measurements VALUES (4, 3, 2, 2, 0, NULL, 0, 0, 0, 100, 0, '', NULL, NULL, 6, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (5, 4, 0, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 40, NULL, NULL, 0);
INSERT INTO public.measurements VALUES (5, 3, 1, 4, 0, NULL, 0, 0, 0, 3, 0, '', NULL, NULL, 40, NULL, NULL, 0);
INSERT INTO public.metrics VALUES (1, 'canaries', 'failure_rate', 'tools');
INSERT INTO public.metrics VALUES (2, 'evals', 'accuracy', 'mmlu');
INSERT INTO public.metrics VALUES (3, 'weights', 'integrity_faults', 'all');
INSERT INTO public.metrics VALUES (4, 'weights', 'figure 0', 'all');
INSERT INTO public.probe_failures VALUES (1, '20261128-004822-618ac0', 'kl', 'crashed', 'it broke');
INSERT INTO public.probe_failures VALUES (2, '20261128-004824-2abd70', 'kl', 'crashed', 'it broke');
INSERT INTO public.readings VALUES (1, 'unit', 'higher_is_better', 'paired_mean', 0.95, 'betting');
INSERT INTO public.readings VALUES (2, 'unit', 'lower_is_better', 'census', 0.95, 'census');
INSERT INTO public.readings VALUES (3, 'unit', 'lower_is_better', 'paired_mean', 0.95, 'betting');
INSERT INTO public.readings VALUES (4, 'faults', 'lower_is_better', 'census', 0.95, 'census');
INSERT INTO public.runs VALUES (1, '20261128-004822-618ac0', 'sandbox', 'main', 'finished', '2026-11-28T00:48:22.948483+00:00', '2026-11-28T00:48:23.294482+00:00', 'PASS', 'small', '{"structured": "PASS", "freeform": "PASS"}', true, false, 0, NULL, 'aa', '1', 1, 1, 5, 2, 2, 4, 3, 2);
INSERT INTO public.runs VALUES (2, '20261128-004824-2e3b83', 'sandbox', 'fp8-head', 'finished', '2026-11-28T00:48:24.208092+00:00', '2026-11-28T00:48:24.374415+00:00', 'PASS', 'one', '{"freeform": "PASS"}', false, false, 0, NULL, NULL, NULL, NULL, NULL, 20, 19, 2, 41, NULL, 2);
INSERT INTO public.runs VALUES (3, '20261128-004824-0692dd', 'sandbox', 'main', 'running', '2026-11-28T00:48:24.465533+00:00', NULL, NULL, NULL, NULL, false, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 2, 2, NULL, NULL, 2);
INSERT INTO public.runs VALUES (4, '20261128-004824-2abd70', 'sandbox', 'main', 'finished', '2026-11-28T00:48:24.575109+00:00', '2026-11-28T00:48:25.184249+00:00', 'PASS', 'small', '{"structured": "PASS", "freeform": "PASS"}', true, false, 0, '2026-04-01T00:00:00.000000+00:00', 'aa', '1', 1, 1, 5, 2, 2, 4, 42, 2);
INSERT INTO public.runs VALUES (5, '20261128-004825-df4bce', 'sandbox', 'main', 'finished', '2026-11-28T00:48:25.939076+00:00', '2026-11-28T00:48:26.096212+00:00', 'PASS', 'one', '{"freeform": "PASS"}', false, false, 0, NULL, NULL, NULL, NULL, NULL, 20, 19, 2, 41, NULL, 2);
INSERT INTO public.sign_offs VALUES (1, '20261128-004822-618ac0', 'jan', 'read it', '2026-11-28T00:48:23.780904+00:00', '4c1a6883127ece805a878228218f0919c78138394ee7e5bcc7398503b777e9bf', NULL, NULL, NULL);
INSERT INTO public.sign_offs VALUES (2, '20261128-004824-2abd70', 'jan', 'read it', '2026-11-28T00:48:25.706520+00:00', '4c1a6883127ece805a878228218f0919c78138394ee7e5bcc7398503b777e9bf', '2026-04-01T00:00:00.000000+00:00', NULL, NULL);
INSERT INTO public.texts VALUES (1, '\x43c9a562a1b28547c772e3c4329839df2e1ab66f4bfb5b877742570c3a96c3c3', '\x0178f95241f52c4592c10ac3300c43ff25f71e56e87ec7b8ae212125098d1be860ff3e7987f62a832dc90ff1a24a6e3515a31e795ede9e8db1d76ad6923e7a3cfaba4297c846e8bced6cfacc44dc4b0130b0185299508d68efb74a033f4effeb2f6f52cd0088b308d4f2206158a1cdaee60bf8b41abe3fa5af35bd');
INSERT INTO public.texts VALUES (2, '\x44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a', '\x007b7d');
INSERT INTO public.texts VALUES (3, '\xb0fc4023878fbcbf6f89df83338d950241fee302f7bb36531a07627a5fe6a696', '\x0178f95241f52c3d53d10ac3200cfc17df05b5a394fdcb10b7ea0813dbe96c1965ffbed3da3ee66292bb8bd9580d95503d171d17120d57430bd6814264d750a5dbc5544dadfc159000f088046ba8629f69f2a9602698f83d08254fc5823d804354299d033bc97eb773a476b0f3787cf736253bea98c30145fbce68a0133d839e9c6357677cb248e02ed156c1974865031bb3267a2adc8bfc1c7603ea99206e3fae1191520d5c88cba014efe5601ea26ac5d719f7c9b88594e719fd5203fe5d98656b');
INSERT INTO public.texts VALUES (4, '\xe2b9c0338bb9249f40461b0dda25fb74887b47d5ee106f92d9fe5889f6eb8d69', '\x0178f95241f52ccd974b6fa43810c7bf0a42da5b3ac206f3d8db5c461a690f2bcd7985dc60babd01bb0526d956d4df7dab0a3074d4798d6657934b1abfca65ff7f55e567927527cb47b8008d5d1c9cb2adaece38aa9bbc84ce5a5768efcf2fdfbf43c351c9bad546cd2d015de393d4b80a9d847665656bf40ef754e9411346b0131a856a0d9db5ed1042532b0dedf3997ed1eefab17223aafaf3c6afcd19050a44526fdabedc799b4daf5463fbee0316df3012765d3b865b537f5de0abea3548484b7252a342b471124c9082f6b8f093d287a343073ae57a5d4d63d401669ecb460242d837c0cd28afbee5e0ae0fcc7b02869d26e5528c021c6f39e735a1cda06b1538e077223f902e28b27bf15b5059d3401faa199ca18b9d87efa6a1e1122d507a60095dece43f2082d1a0978fb21d17adcb8384b9b8839511f0cc8e3db9e6f0242f68c6db84794526a6880923e81fdc81ee8137122d0438080ca51ecabd7208ebb5456fa79c5b27581a7d183d81d3478967dec3288af2b8e8dc3d9e4efe77ab1e554b9b12745b478bee56ca0ce3803b6fed302c43e1e7cf595377e83b8d3d9527e92d9cca868867eb4729ebbf3166d54bacb02568c3cc138cd5832a9bd6ae51836e89b282b30ef7c9302f50b8a9e70f9f6570df063453cb3de6c208f6a64dd34b2fc1f0f746b6835a1028f767a2e06e163e01b2ca5ec1b95c895e56d5d84b083fabd8e7295eedbf8cc021398204a142e8cf5bc515ff8dc68f10205e13797143e4d4ba689cbda7f1224b8a44b024113c898a22f6f2849971c493823316e7096769fc9a5a715b78071f43000b8a170bf3780b051791487221924c145194a2a9f7ed7a4c8aebbf7cc586df67799c0b962745ca53218a54edf24f83747d5c3cff18587c0b16ff41b02aa839945b6a0bc82cdd302f0613800be92833b19c425f074ac4d39946b4aa712554591393af303a65c715d24a1ad96b75c5e95c5f94500fa90dabcbd45ba9e91d5cbf7ef9f6c71657d8e50b5eef82bd3a5b53074f4720b73a42a5ac0228bb5a846d05771af44e66d2a6424b6a4b11fbdf93537293db689b9b92b7b98d2396c5510c724c639671916d10129ca709889d8b386722293e016ef256eefad9361768d90a29dbe6b6f8be8812b013c759ce224057ed98b80169769f474065946622e52c8bf8346e832d7fb1f3f4d7c3965a3e81ed73689f0c5105b974cbcf83818ed0179fd4b6e049449f177f6778a70fe049d3bb21e4114f7751bc8b5978a13276f3a678f6c1e1a1bdcab12ed8f7f601a19961abe02ce0e51c5ee8312c0ff3747c9c5e95bdd0e728dbc35273253b9f11ca02e289a1380c034139ed5a5b4b380c545239e883296dd3f803c7061fdc6020c0078fb5617114ce58d57a792119eba69f977f0180792e39');
INSERT INTO public.texts VALUES (5, '\xf4c50cb2a2bc407a188dedc44da77798295db049ea5a79106d6b7bd66acdceeb', '\x0178f95241f52ced95c14ec3300c86dfa5e71d600201cf82d0e4a56e672d4daa34d99826de9ddf49cb32c1052138714c1a3bf6fffd4ecfd924ba3194865a9e4c9051f194f4561c53cf250dd97147b9e4f5bdfae3754311f28f6a905200822196e0d0f3b911d562186c2a4a6df5223e909db01e3806312aa431299039a9ba5654af25a4f84f9bd98bcba9e0c6c0062319f43832a52ce0132aeb499c4e64253c12fa1472c6a8d30a4b5b72c5a55d60ee7c181a741525e3cd830ccf22ce78d7495be821fd83368bbb3380364fbd2e67677cf42e4e3352944386ae4720c680ef4bfc8e0af1797d64e97751371e519b0ec540b9d1d18fc95286809abddf4f97d8b5c6b6473a5db6ee568dc75d0e656b4df9fee66ab96a8e2407daeaf31543623c0e3eea298832738ade67300b28438e82f015abd9541b0c0157bc96d0cfc0e010d4a1b6e31ad8edf78161f2928949f5ff4736231317c9c48a59a9ee0a19ce708fa13c6d3ac23b3c55d8cac47f09cde04f166b62373f22b6fafd792b5b7f05a4c323561379797b075bb9c8cc');
INSERT INTO public.texts VALUES (6, '\x895712ed0be0788dfe2a2c6670d96ed0b1609056f34a163e590d6a80d37e7b44', '\x0178f95241f52cab46a4420303b4d4879ae220e62325b658447a87c8e14ee988ac03e1431326849396989b999389e097a766a6679414237209d0d129894930ddb50008ac3d8f');
INSERT INTO public.texts VALUES (7, '\xa3dbfc343810e78b675d6e97de958842e8c6ad814cc78602faae919f40f393a5', '\x0178f95241f52cedd9d16a13411886e15b113c16e6db999d99bd180fa2160d540a5af040bc775b4a4d907d443c29c8b20c34ffd9d324bbef4cbeef7d0a8febe5afeb3b412e778163fdc32ac7fa9fd76f4fc6e33f72ac63fde9db82623cae97bede5e6d21ca5fec202e5b92a7d7bf82fffeeeeef6cdfb87447d555e3ffffd908a9771f6c7cbfeb8ee8fdbfe78dd1ff7fdf1d81fcffdf1068e987006d0401a50036b800db40137f02ef02e7a5fe15de05de05de05de05de05de05de0adf05678ab3ec8f056782bbc15de0a6f85b7c2dbe06df036789bbeb9f036781bbc0dde066f83778577857785778577d5ad0ade15de15de15de15de0e6f87b7c3dbe1edf076dd9be1edf076783bbc03de01ef8077c03be01df00e3d8ce01df00e7827bc13de09ef8477c23be19df04e3d7de19df06ef06ef06ef06ef06ef06ef06ef06ef06eca0df68682a3a8388a92a3a8398aa2a3a83a8ab2a3a83b8ac2a348eed4929cb1c5da626eb1b7185c2c2e26979a2b8aae2cac4cc9d55d517845e515a557d45e517c45f515e557d45fa90c6cc9956051834511165558946151874521169558946269dc5b48ae1a8b722ceab128c8a2228b922c6ab228caa22acbca6d95e40ab3a8cca2348bda2c8ab3a8cea23c8bfa2c0ab474ee282557a3459116555a946951a745a116955a946a51ab6570332db9722deab528d8a2628b922d6ab628daa26a8bb22d93e70892abdca2748bda2d8ab7a8dea27c8bfa2d0ab8a8e0b2f108e54afef84be8e9f3f9f6fc784cf67466f6ede6fcf1d3fdd7cb8ff25f6e4e1f4eef9e0fd57efc04efb40b48');
INSERT INTO public.texts VALUES (8, '\xd95083b237c2a53941717c2412907664d99659eec29214c22e37ecae9abea6b2', '\x0178f95241f52cabc6960a47e1c043e492c010510a8ce2513ce4b1017531f69a71148fe2d1dc8235b7e068318ec28186b1485d0803227a10882e09840f6df043386989b9993999087e796a667a464931a2f7016c0ca62426c174d7020023f8ef72');
INSERT INTO public.texts VALUES (9, '\x44f831a1d3ebd06bb255b6938fea8f907868ee81eac43fb6518e5ae5b7252de8', '\x0178f95241f52c8bae06a712a0486e6e4e29d0b44c606802f518811246665e5a7e516e624926280b185a0045923312c13e02bb39391118b8e0b4545e949f970ed284941a0d6a6b63017a0f1dae');
INSERT INTO public.texts VALUES (10, '\xadf4b020dfd8c61defee237a85f0ea906ad292b6e52958f3a94308c32f753115', '\x0178f95241f52c8bae06a712a048497e7e4e31d0b84c6070023519815246665e5a7e516e624926280f8045923312c15e023b3a391118bae0c4545e949f970e14454a8d06b5b5b100870a1deb');
INSERT INTO public.texts VALUES (11, '\x20ad6c528a2f37b33341efdde57d1a1a1a6aabbc819405059471df6dfe9449d8', '\x0178f95241f52c43f65e123eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500c07e2e03');
INSERT INTO public.texts VALUES (12, '\x44c32b80cee48fe8c03935ef73d53d3ba9219570dde429339f00bc20df8ae286', '\x0178f95241f52cc36aa86d726e4a4d8c927eb24272624e728c92a2a32130284a0d0c0c93a28d0d736d8a938b320b4aec1e35ac43b7be340f68434a6212289760f800007397248b');
INSERT INTO public.texts VALUES (13, '\x4839fecf90e3c9d6f97d06312bd18f9d827af28e7456e95da756c3aac7694ba6', '\x0178f95241f52cc3ea0adbe4dc949a1825fd6485e4c49ce418254547436050941a181826451b1be6da142717651694d83d6a58876e7d691ed08694c424502ec1f001007334248a');
INSERT INTO public.texts VALUES (14, '\xc4ea23d432eba24fdd5258ad178fad04ab9041c84df4c56177bdd846dad66b31', '\x0178f95241f52c43f65e223eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500bff92e02');
INSERT INTO public.texts VALUES (15, '\xc56fab953dd69c99deeee831395da74a83656ed0ffbe4f18021ef74fd35a5bcb', '\x0178f95241f52c831b0a4d9e10536d9373536a6294f49315921373926394141d0d8161516a606098146d6c986b539c5c94595062f7a8611dc27ea5cc1285a4a2fcec542550ca065a94929894938ac52300bf442750');
INSERT INTO public.texts VALUES (16, '\xca7661b26d0e3d3973166d4be32727f0ca8fafa45338050a24d2484d4adfd2ba', '\x0178f95241f52c43f65e323eff1929682b1829d8a27ad384087f9aa03bb1340fe88a94c424504ec2f42500c1032e04');
INSERT INTO public.texts VALUES (17, '\x8277aaad4361425b749e3509415aae57d821f74b7c82e0003163ecb21cbb3fc4', '\x0178f95241f52c3553cb0ec3200cfb17ee48219b2ab49f41740d1512622d11dba13fbff0e8d189708ce35caa43045c343c341821fcf9f895758c8713b8201fbd87ac89986973a5e6bb54e8acb190e3b867f70941bd824f4cd2908b112a14c525366f2e45bea4d80c6dfc350f693dc0826716a62663d06a80a745d48bb1fe0ddd5959ea36264b4ab91e87f0f12cfc012b814488');
INSERT INTO public.texts VALUES (18, '\xea363e80a10786bab1415a95dccdfaed481d84e93b3b395756aa61914383ed37', '\x0178f95241f52ccd97cf6ea43810c65fa5d5d2de92081bcc9fb9e532d2487b58691e00b9c1747b074c0b4c32ad28efbe5f1930107526c96876347d69303655657fbfaae2c9c9ba91f9030e40d3238ea0da5a17179ad58c51e261a90bb2f7f9fecbdf18382959d6daa865447dd7362fda5239264a55e85e3b72f6b66deb7e0f1f1e2546cad19f5a1ae7da93bb720e7543610712f2bbec5db56014e446585eb5fa7ce3ad559d5255db351b5bffdc7ffdbab5358dac6c6d8d344d3dbcb081bba2d3d08b962e3c4d72d0c64a98707239d08b1f953e9e40151853b6d3c538471db1f2925712bcd0b31ec7a0bcd4e62ddb6e958f0486ad7632750909ec5d0bce0b409b5e976a6701eb88f94eda5d96dc89bf76456b2a3c23e9221877a4d3f4db71ea7e4e0da43358a2101bf91dc73f188af241d6c32c6c7994584b1e2c4020b276e85c689676f299cc789b589725624c8f98e1fe7006ba035c4ea1c866c802b9eef383b244e6d6a2b7934fa32319953e0e1eb7f126a73def30cba5747ae9f478389ffd75ad1e54ed9c12eeb44e2d855b28d30f3d795eb77d3f4fc5e5af79a76e287637f79c9fa5b770ce2b87375b6e7259fe4b09aa9c13439b431b665a605addabbcaadb2545b8537225c0b696fc6454045c6e29a71b5f52c86f03cd94f240852f806fda549df412dc7faa64ddab1981fc70994973c277802cb257d8978de865510c9d44ae59c43e2df16aff63048e4a0809a21de82e6bc565ff8fc64f4810af893cbb2272373a6b9cbda5f12c89b248b028123c0ab22cf4f2c4ca30e051c6190bd388b3387c4dade4169dc1fb10a0eee1c58b79b886828b4044a9105122b22088c9d4db763d26d9f6972ed8f0bb240d53c1d2288b792c4416abdbf4c3206db78ba7ef038bafc1e23f0956810643d9b991406569fae96558002ea4759589a52ef5355022edce38a35695cdd1528d4cbec2e8582917480b6964a7d586d3a999c8d1fca815abf3d26ba5e90d5ca732ee7185972f78bdd91dd4a535e5eef104728b13da62b5438f55136c0bb8e3a4372a93360559526b8ad86f2f4ed1556e83756d8a7ecc6d18b0240c42c8310e59c245b24248701e47103b1761ca44947d00dce847b5eb57db9ca1650ba46c5ddbc2bb2c8860270c9394054057dd327105d2e42e0d4065102722e62c09f8386f852d7fe179fce761eb463e842d35f34b6bffe4b1fd566faa9fdd1dbaf61bc979c2a08097f880dd3fbb6f52799c96d337e2a621c533ebea305e35f59893f7746020ddb80c898938d37ae97a25dca433ce7b7d34795b557e2b68c0fb8f89c002df4cfdbcff885e957afe5031ad1d2f9fff0350c60566');
INSERT INTO public.texts VALUES (19, '\x02bd6155b9a6f3592d9999c8cab52fe7ce4df6d95b642142af7b7055c217b25c', '\x007b226b6c223a2273227d');
INSERT INTO public.texts VALUES (20, '\x432016dc9c63c6e2098ce7ae7fb41a727619d22a3cef3f65cae4a77d82209f82', '\x0178f95241f52c5554ed6ac3300c7c17ff2e63948db1671923a8899388bab6719ca6a5f4dd7767755f3f6d4b27e974e75b13092e52f48ee94b5f347339061e347a99bc8148c8b3b486f7af54c7a5930af233e561e5910caa14411f37a764426395be1a530716dabc4e333200e06bd1de62fc84cc6b370aa4c2b72528997bb06c42e454478d4465ed1e6623f059c2fa4da34ca291befc433fc0d25a1a5aa56721ec20d1b43a16efc7544e0ed3556d4b6e76867291d7a738ea603b7c7e7a7fe3d0f0435bc3d0bccfe3431f3f1c6824a254e5c7615794fb495ae739e5354823187da4745cba6516d3c19e80c326d7dfab971d36d369442bacd330ddbfe3ce6da26739f063aa65f5b07daa8c72f7cffb178117a1a7');
INSERT INTO public.texts VALUES (21, '\x025d6a50fffd43bb870e50229a31b696622da8f7ae1519ece71af17013e43cc2', '\x0178f95241f52cc36a685a81856e466a628a8211baf1a579401352129340b900c385009a921910');
INSERT INTO public.texts VALUES (22, '\x19e611b32406bb40ec88e2474c0ce374af2a4ea65cf2f6264bfff675add6266e', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a58a2bbb2340fe89094c4245066c2f428007a1f3247');
INSERT INTO public.texts VALUES (23, '\x2c73f44e7241dac14a60126c30a7121f650295ff9b5be1a1cf44ffd5ecf9619b', '\x0178f95241f52cc36a683130dda01b5c9a07d49b9298044aff186e030024c51797');
INSERT INTO public.texts VALUES (24, '\x2dd88fcbe30fa12f6227a60deeee35a7660bb22b459609e3e9373f4de7e07efc', '\x0178f95241f52cc36a685a81856e466a628a8209baf1a579401352129340b900c385009aee1912');
INSERT INTO public.texts VALUES (25, '\x4423ba02dea8819c59ee22fb91d751e9778492a1ad58a4919b8b55dcf6ef44a5', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a0bbb2340fe89094c4245066c2f428007878323e');
INSERT INTO public.texts VALUES (26, '\x5b0b09d094eb170ab3bebd24e247828967377fe0867f35a96196401866b23c5a', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a181aa23bb3340fe89294c424506ec2f42900a3ad3270');
INSERT INTO public.texts VALUES (27, '\x6a442ffc250a1045770318fc1909e4da3f0aa6955b72fb44795bf84019746a27', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a58a0bbb2340fe89094c4245066c2f4280079f03246');
INSERT INTO public.texts VALUES (28, '\x81a2dd811ed961bd87de77f8bda51abf47c3ceb9758a4041c53518d9e5e47c85', '\x0178f95241f52cc36a685a81856e466a628a8219baf1a579401352129340b900c385009b4a1914');
INSERT INTO public.texts VALUES (29, '\x971213cc054b16279b61caeab56d308eec8b09a5b090d9b78f60a5052f4b6b05', '\x0178f95241f52cc36a685a81856e466a628a8201baf1a579401352129340b900c385009a36190e');
INSERT INTO public.texts VALUES (30, '\xa596a0b3e175826a4d047e61510a9858286056fa50ec871ba9872b6f15541136', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a1bbb2340fe89094c4245066c2f4280078d63240');
INSERT INTO public.texts VALUES (31, '\xa93950c2b33971fb1645e8ff04f0a2f5f5236d3ed9c715a64dd36cace08739f7', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a2bbb2340fe89094c4245066c2f4280079633243');
INSERT INTO public.texts VALUES (32, '\xac030f374319cf1522f142f7a867126acb92af39807ef6ce6dcce85546195538', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a181aa03bb3340fe89294c424506ec2f42900a37e326f');
INSERT INTO public.texts VALUES (33, '\xb24e845571b8cf5fcca24b6a8b34e1a2642d87e38882b3e5a74be50b6d57e89a', '\x0178f95241f52cc36a685a81856e466a628a8205baf1a579401352129340b900c385009ba61916');
INSERT INTO public.texts VALUES (34, '\xc32fabab1c690ec3a2ba6b346fa994ac974041eae03604835f823eb19818b502', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a2bbb2340fe89094c4245066c2f4280078a7323f');
INSERT INTO public.texts VALUES (35, '\xc7ffd1d394f4afe80f412b1b7fd429e3f2ddd76f8ccbe5f96f2fe1566bc7328d', '\x0178f95241f52cc36a685a81856e466a628a82a101baf9a579402352129340d900c38900ac58193f');
INSERT INTO public.texts VALUES (36, '\xc9d34f7aca5dc8139af30350ac29ec3002610291dac262ddbdf3a4fa3a5a71ed', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a18a3bbb2340fe89094c4245066c2f4280079053241');
INSERT INTO public.texts VALUES (37, '\xcdadc4e0a3c7c5f3d6c63cbc3def17566cdd24ec6ccea72d4acb1dbde38b58e1', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a0bbb2340fe89094c4245066c2f4280079343242');
INSERT INTO public.texts VALUES (38, '\xf2d61588b1882e535808886fc05e96bd87da76db654d3bc9d9ec71f25fe8f1e7', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a3bbb2340fe89094c4245066c2f4280079c13245');
INSERT INTO public.texts VALUES (39, '\xf4433bb37c150d2d1d0d1341fa55be8a3790a7ecdd7ad84adc837d0a45410e7a', '\x0178f95241f52c43f65e321eff414c47f810c227e44748c42a98a1bbb2340fe89094c4245066c2f4280079923244');
INSERT INTO public.texts VALUES (40, '\x4699e120a586c900fa92cca770c815a6d9049f936da3c628a9e19f171b32a62b', '\x0178f95241f52cab464a854658521f6aaa83d88192e06211a91e228b3bbd233210840f4d9e104e5a626e664e26825f9e9a999e51528cc82b40a7a72426c174d70200ebe83ea3');
INSERT INTO public.texts VALUES (41, '\x756f3b1bf205b9e028202275286774b157d691a5ba3397d34f26f3c6ff7aa4c3', '\x0178f95241f52ced564b6a1c3110bd8a0864679b7c188cc92a3708f80042a34f4f25dd5223a9c71eccdc3daf4add6a06b2c822abe05d492ad5f7bd92de04d693d1673480f8e80b924a23d90bb452f47080234796bdfdf8fefc8c8d93376e249cf51dff4a55dbe4381d0ec25221e10d5cbf1888aec9a38912d19b48b81fb2f721e5e9efdcdc1a8e1ee06212de7ab9626533a16564c4157147285603e3d2b1239b7cf1349c006cc0dcd74cb6e9f801372f3a184096cf0a2ae17bb7b7f0f7b0e1ab928043c60010ffa74c7ad92916725e5550a4914b99aa9e1e1f0e1f954d31e08c0183f8a594abfa7d53fdb01192bb0b4f9cd5645e51f625726267332e1b9ccc60709723d8618864d292259bca65bbb29bee13f79e1e0f6d28715fb60238ca00b520035304ecd354f4d15766c4adcfee49afbb0d918186a5c3bc2d34173a434b46291b5d8f9779eef2e8cf7e94b00ed2a253e284ad8f65291cfb984ad95421fe1b9b3471f6a23bebd9740fb30e42abcffb421bf7930783db0899745d725c2fc444c5eb30a69d9ad22719bd35558ef3eb5d63b413b18f718e390231ce1cf9b1f984b828866c307a165ba596c18cc56f98d7c78bc0fe6e477a43f183339319bcbb07c3edaf39517cc77fc3bf516b69d45e1a4545c55425b6ece589c2797b8dbf2900275f541b8c4abe0750c48dcc1f827726fd5f4ce2f7f2e6f5c41761d86403dd0a9ceb4243d429846e8437ba1128a2b3f81b942deaec27ef683303a835f1fa1bb2017bd2');
INSERT INTO public.texts VALUES (42, '\x62d365bf9c4ee9476ee52254679bbedf7438ff3f9e2573c56b4facf6e19560fc', '\x0178f95241f52c3d53d10e83200cfc17de4900cd66f62f0bc1094b33820ea66631fbf71d883ef64adbbb2bdd58099550172e1a2e241aae8616ac0385c8aea148b78b299a6af92b2001e01109d650c13ee3e853c64c30f17b104a9eb2057b0087a8503a073692fdeee748ed60e7f1b8f736253be83887038af63da3814ef40c7a748edd9cf1c92281bb445b055f22e50d6ccc9ae82973cff2e7b01b50ce0471fd71958894aae342b49d6ab932fd7015452bbeceb04fc62da4799ad02f55e00f64e8659a');
INSERT INTO public.texts VALUES (43, '\x4d77952e4d035427b0d8becacd351ba4ba098378a366d17c46be589392e98a3c', '\x0178f95241f52c3553cb0ec3200cfb17ee4821abb6aa3f83a8081312622d11dba13fbff0e8d189708ce35caa43047c6a78683042f873f12beb180f27b0413e7a0fd9133193b7a5e6bb54e8acb190e5f8cef61382da824b4cd2908b112a14c525366f2e45aea4d80c6dfc350f693dc0826716a6266370d500cb8a8b46b7fb17746765a97e4c9694723d0ee1e359f80332d144b7');
INSERT INTO public.texts VALUES (44, '\x0cef26acfa3d35beababa7e50ba54563eefa5167b7370fa9b5e3e20e4c0ddde4', '\x0178f95241f52cc36a686e62669e8209bad1a57940dd298949a01c80e13a00436f17ea');
INSERT INTO public.texts VALUES (45, '\x19e89b21e88f8a501c209963c907c563164a7b8c5feac92b783793ed26e97533', '\x0178f95241f52cc36a686e62669e8219bad1a57940dd298949a01c80e13a0043cb17ec');
INSERT INTO public.texts VALUES (46, '\x331f6c5248b8660f5394b89f4ca0ff502bcb4e032383c083d4c99d0eeb88442d', '\x0178f95241f52cc36a686e62669e8201bad1a57940dd298949a01c80e13a0042b717e6');
INSERT INTO public.texts VALUES (47, '\x76487d3057aba945e60f727f1c286c4dad85826798c83c77c6bbae5d770b0bab', '\x0178f95241f52cc36a686e62669e82a101bad9a57940ed298949a02c80e13c0053b11817');
INSERT INTO public.texts VALUES (48, '\x923b33ee3ea1e88d153b8f703aa5829d470e3433a554ed2a2d42023cb7807c2c', '\x0178f95241f52cc36a686e62669e8205bad1a57940dd298949a01c80e13a00442717ee');
INSERT INTO public.texts VALUES (49, '\xb6512b0587f1a1f61ed7533f978c5aec30535d593bb3ab88f11ebf2c8eb305dd', '\x0178f95241f52cc36a686e62669e8211bad1a57940dd298949a01c80e13a00431317e8');
INSERT INTO public.waivers VALUES (1, 'sandbox', 'main', 'eva', 'known', 'tools', '2026-03-31', NULL, NULL, NULL, '2026-11-28T00:48:23.455964+00:00', NULL, NULL, NULL, NULL);
INSERT INTO public.waivers VALUES (2, 'sandbox', 'main', 'zoe', 'elsewhere', 'mmlu', '2026-04-30', NULL, NULL, NULL, '2026-11-28T00:48:25.847933+00:00', NULL, '2026-04-01T00:00:00.000000+00:00', NULL, NULL);
SELECT pg_catalog.setval('public.asked_id_seq', 15, true);
SELECT pg_catalog.setval('public.blessings_id_seq', 3, true);
SELECT pg_catalog.setval('public.earlier_decisions_id_seq', 2, true);
SELECT pg_catalog.setval('public.engine_events_id_seq', 4, true);
SELECT pg_catalog.setval('public.metrics_id_seq', 4, true);
SELECT pg_catalog.setval('public.probe_failures_id_seq', 2, true);
SELECT pg_catalog.setval('public.readings_id_seq', 4, true);
SELECT pg_catalog.setval('public.runs_number_seq', 5, true);
SELECT pg_catalog.setval('public.sign_offs_id_seq', 2, true);
SELECT pg_catalog.setval('public.texts_id_seq', 49, true);
SELECT pg_catalog.setval('public.waivers_id_seq', 2, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT artifacts_run_id_name_key UNIQUE (run_id, name);
ALTER TABLE ONLY public.asked
    ADD CONSTRAINT asked_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asked
    ADD CONSTRAINT asked_probe_item_key_item_group_key UNIQUE (probe, item_key, item_group);
ALTER TABLE ONLY public.blessings
    ADD CONSTRAINT blessings_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.criteria_results
    ADD CONSTRAINT criteria_results_pkey PRIMARY KEY (run, criterion);
ALTER TABLE ONLY public.earlier_decisions
    ADD CONSTRAINT earlier_decisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.engine_events
    ADD CONSTRAINT engine_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_pkey PRIMARY KEY (run, asked);
ALTER TABLE ONLY public.kept_drifts
    ADD CONSTRAINT kept_drifts_pkey PRIMARY KEY (family, branch);
ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_previous_key UNIQUE (previous);
ALTER TABLE ONLY public.ledger
    ADD CONSTRAINT ledger_sha256_key UNIQUE (sha256);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_pkey PRIMARY KEY (run, metric);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_probe_metric_slice_key UNIQUE (probe, metric, slice);
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_run_id_probe_kind_reason_key UNIQUE (run_id, probe, kind, reason);
ALTER TABLE ONLY public.readings
    ADD CONSTRAINT readings_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.readings
    ADD CONSTRAINT readings_unit_direction_estimator_level_method_key UNIQUE (unit, direction, estimator, level, method);
ALTER TABLE ONLY public.run_progress
    ADD CONSTRAINT run_progress_run_id_key UNIQUE (run_id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_id_key UNIQUE (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.sign_offs
    ADD CONSTRAINT sign_offs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.texts
    ADD CONSTRAINT texts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.texts
    ADD CONSTRAINT texts_sha256_key UNIQUE (sha256);
ALTER TABLE ONLY public.waivers
    ADD CONSTRAINT waivers_pkey PRIMARY KEY (id);
CREATE INDEX ix_engine_events_run_id ON public.engine_events USING btree (run_id);
CREATE INDEX ix_ledger_run_id ON public.ledger USING btree (run_id);
CREATE INDEX ix_runs_branch ON public.runs USING btree (family, branch, started);
CREATE INDEX ix_runs_started ON public.runs USING btree (started, id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT artifacts_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.blessings
    ADD CONSTRAINT blessings_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.criteria_results
    ADD CONSTRAINT criteria_results_metric_fkey FOREIGN KEY (metric) REFERENCES public.metrics(id);
ALTER TABLE ONLY public.criteria_results
    ADD CONSTRAINT criteria_results_run_fkey FOREIGN KEY (run) REFERENCES public.runs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.earlier_decisions
    ADD CONSTRAINT earlier_decisions_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.engine_events
    ADD CONSTRAINT engine_events_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_asked_fkey FOREIGN KEY (asked) REFERENCES public.asked(id);
ALTER TABLE ONLY public.items
    ADD CONSTRAINT items_run_fkey FOREIGN KEY (run) REFERENCES public.runs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_metric_fkey FOREIGN KEY (metric) REFERENCES public.metrics(id);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_reading_fkey FOREIGN KEY (reading) REFERENCES public.readings(id);
ALTER TABLE ONLY public.measurements
    ADD CONSTRAINT measurements_run_fkey FOREIGN KEY (run) REFERENCES public.runs(number) ON DELETE CASCADE;
ALTER TABLE ONLY public.probe_failures
    ADD CONSTRAINT probe_failures_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.run_progress
    ADD CONSTRAINT run_progress_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.sign_offs
    ADD CONSTRAINT sign_offs_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(id) ON DELETE CASCADE;
